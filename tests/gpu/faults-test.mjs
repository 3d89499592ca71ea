// @ts-check
/**
 * @file What happens to the others when a GPU rank fails in a forward or backward of a step: it throws, is killed, stops, or sends
 * another shape than before; also in captured steps. `node tests/gpu/faults-test.mjs --ranks 2 --rounds 20 --jobs 4`. Every other rank
 * must end with an error that names a rank, within the time limit and five seconds, and the GPU's memory must be free again. Without MPS.
 */
import { execFileSync, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { buildSchedule } from '@pipewright/schedule';
import { cat, cuda, distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { rankEnvironment } from './rank-environment.mjs';

const LIMIT_MS = 4000;
const WIDTH = 64;
const MICROBATCHES = 4;

/** @typedef {{ ranks: number, fault: string, inBackward: boolean, victim: number, microbatch: number, step: number, capture: boolean }} Setting */

class Faulty extends nn.Module {
  /** @param {Setting} setting @param {boolean} isVictim */
  constructor(setting, isVictim) {
    super();
    this.fc = new nn.Linear(WIDTH, WIDTH);
    this.setting = setting;
    this.isVictim = isVictim;
    this.calls = 0;
  }

  /** @param {import('@pipewright/torch').Tensor} x */
  forward(x) {
    const { fault, inBackward, step, microbatch } = this.setting;
    const y = this.fc.forward(x).tanh();
    const at = step * MICROBATCHES + microbatch;
    if (!this.isVictim || this.calls++ !== at) return y;
    if (fault === 'shape') return cat([y, y]);
    if (inBackward) y.registerHook(() => fail(fault));
    else fail(fault);
    return y;
  }
}

/** @param {string} fault */
function fail(fault) {
  if (fault === 'throw') throw new Error('out of luck');
  process.kill(process.pid, fault === 'kill' ? 'SIGKILL' : 'SIGSTOP');
}

/** @param {Setting} setting */
function main(setting) {
  const { ranks, victim, capture } = setting;
  const group = distributed.initProcessGroup({ timeoutMs: LIMIT_MS });
  const { rank } = group;
  const [stage] = buildSchedule('1F1B', { ranks, microbatches: MICROBATCHES }).stagesOf(rank);
  const module = new Faulty(setting, rank === victim).to({ device: 'cuda' });
  const runtime = new PipelineRuntime(
    new PipelineStage(module, /** @type {number} */ (stage), ranks, { group }),
    '1F1B',
    {
      microbatches: MICROBATCHES,
      lossFn: (/** @type {any} */ output) => output.square().mean(),
      capture,
    },
  );
  console.log(JSON.stringify({ ready: true }));
  const x = randn([32, WIDTH], { device: 'cuda' });
  try {
    for (let i = 0; i < 50; i++)
      scope(() => {
        /** @type {any[]} */
        const losses = [];
        // In a replay no forward runs: the victim fails between two of them.
        if (capture && rank === victim && i === setting.step) fail(setting.fault);
        runtime.step(...(rank === 0 ? [x] : []), { losses });
        for (const loss of losses) loss.item();
        cuda.synchronize();
      });
    console.log(JSON.stringify({ error: null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error), at: Date.now() }));
  }
  process.exit(0);
}

/** @param {Setting} setting */
async function run(setting) {
  const port = await distributed.freePort();
  const children = Array.from({ length: setting.ranks }, (_, rank) =>
    spawn(process.execPath, [fileURLToPath(import.meta.url), '--rank', JSON.stringify(setting)], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...rankEnvironment(rank, setting.ranks, port) },
    }),
  );
  const outputs = children.map(() => '');
  children.forEach((child, rank) => {
    child.stdout.on('data', (/** @type {Buffer} */ chunk) => (outputs[rank] += chunk.toString()));
    child.stderr.on('data', () => undefined);
  });
  const closed = children.map((child) => new Promise((resolve) => child.on('close', resolve)));
  const others = closed.filter((_, rank) => rank !== setting.victim);
  const start = Date.now();
  const isLate = await Promise.race([
    Promise.all(others).then(() => false),
    new Promise((resolve) => setTimeout(() => resolve(true), 20_000 + LIMIT_MS + 5000)),
  ]);
  const tookMs = Date.now() - start;
  for (const child of children) child.kill('SIGKILL');
  await Promise.all(closed);
  const problems = outputs.flatMap((output, rank) => {
    if (rank === setting.victim && setting.fault !== 'shape' && setting.fault !== 'throw') return [];
    const line = output.trim().split('\n').at(-1) ?? '';
    const error = line.startsWith('{') ? JSON.parse(line).error : undefined;
    if (isLate) return [`rank ${rank} did not end`];
    if (typeof error !== 'string') return [`rank ${rank} ended without an error (${line})`];
    return rank === setting.victim || /rank \d/.test(error) ? [] : [`rank ${rank} names nobody: ${error}`];
  });
  return { problems, tookMs, errors: outputs.map((output) => output.trim().split('\n').at(-1)) };
}

/** As the driver says: this process stays away from the GPU, since with MPS a rank that is killed takes all others with it. */
function freeMiB() {
  const args = ['--query-gpu=memory.free', '--format=csv,noheader,nounits'];
  return Number(execFileSync('nvidia-smi', args, { encoding: 'utf8' }).split('\n')[0]);
}

const { values: flags } = parseArgs({
  options: {
    rank: { type: 'string' },
    ranks: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '1' },
    jobs: { type: 'string', default: '1' },
  },
});

/** All faults at random slots. @returns {Setting[]} */
function settings() {
  const ranks = Number(flags.ranks);
  let seed = 5;
  const random = (/** @type {number} */ below) => (seed = (seed * 48271) % 2147483647) % below;
  const kinds = /** @type {[string, boolean][]} */ ([
    ...['throw', 'kill', 'stop', 'shape'].map((fault) => [fault, false]),
    ...['throw', 'kill', 'stop'].map((fault) => [fault, true]),
  ]);
  return Array.from({ length: Number(flags.rounds) }, () =>
    kinds.map(([fault, capture]) => ({
      ...{ ranks, fault, capture, inBackward: !capture && fault !== 'shape' && random(2) === 1 },
      victim: fault === 'shape' ? random(ranks - 1) : random(ranks),
      ...{ microbatch: random(MICROBATCHES), step: 2 + random(4) },
    })),
  ).flat();
}

/** Whether the GPU has as much free memory as before; those that ended just now may still be giving it back. @param {number} before */
async function lostMiB(before) {
  let lost = before - freeMiB();
  for (let i = 0; i < 20 && lost > 64; i++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    lost = before - freeMiB();
  }
  return lost;
}

if (flags.rank !== undefined) main(JSON.parse(flags.rank));
else {
  let failed = 0;
  const waiting = settings();
  const all = waiting.length;
  const before = freeMiB();
  /** @type {Set<string>} */
  const shown = new Set();
  const isAlone = Number(flags.jobs) === 1;
  const work = async () => {
    for (let setting = waiting.shift(); setting !== undefined; setting = waiting.shift()) {
      const { fault, capture, inBackward, victim, step, microbatch } = setting;
      const { problems, tookMs, errors } = await run(setting);
      const lost = isAlone ? await lostMiB(before) : 0;
      if (lost > 64) problems.push(`${lost.toFixed(0)} MiB of the GPU are not free again`);
      if (problems.length > 0) failed++;
      const kind = `${fault}${capture ? ', captured' : inBackward ? ' in a backward' : ''}`;
      console.log(
        `${problems.length === 0 ? 'PASS' : 'FAIL'} rank ${victim} ${kind} at step ${step}, microbatch ${microbatch} (${(tookMs / 1000).toFixed(1)} s)${problems.map((text) => `; ${text}`).join('')}`,
      );
      if (problems.length > 0 || !shown.has(kind))
        console.log(`     ${errors.find((_, rank) => rank !== victim)?.slice(0, 260)}`);
      shown.add(kind);
    }
  };
  await Promise.all(Array.from({ length: Number(flags.jobs) }, work));
  const lost = await lostMiB(before);
  if (lost > 64) console.log(`FAIL ${lost.toFixed(0)} MiB of the GPU are not free after all of them`);
  const isGood = failed === 0 && lost <= 64;
  console.log(`${isGood ? 'PASS' : 'FAIL'} faults: ${all - failed} of ${all} ended as they must`);
  process.exit(isGood ? 0 : 1);
}
