// @ts-check
/**
 * @file Pipelines on GPU ranks against plain training there: `node tests/gpu/conformance-test.mjs --ranks 2 --kind nccl`.
 * Kinds: nccl, gloo (processes), threads. With more ranks than GPUs NCCL is told that every rank is a host of its own, and
 * messages go over sockets: for that, start MPS first. `--schedules 1F1B,ZBVZeroBubble`, `--captured true` and `--only skip` choose
 * cases, `--jobs 3` runs so many schedules at a time, with `--early` gradients leave in the middle of backwards. One line per failed case, then a summary; exit code 1 where one failed.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { distributed } from '@pipewright/torch';
import { casesFor, differences, title, variationsFor } from '../../packages/pipewright/testing/conformance.mjs';
import { rankEnvironment } from './rank-environment.mjs';

/** @typedef {import('../../packages/pipewright/testing/launch.ts').TrainingResult} TrainingResult */
/** @typedef {import('../../packages/pipewright/testing/launch.ts').TrainingCase} TrainingCase */

const program = fileURLToPath(new URL('../../packages/pipewright/testing/ranks/training.mjs', import.meta.url));
const { plain } = await import(program);
const { values: flags } = parseArgs({
  options: {
    ranks: { type: 'string', default: '2' },
    kind: { type: 'string', default: 'nccl' },
    only: { type: 'string', default: '' },
    schedules: { type: 'string' },
    captured: { type: 'string' },
    device: { type: 'string', default: 'cuda' },
    timeout: { type: 'string', default: '120' },
    jobs: { type: 'string', default: '1' },
    early: { type: 'boolean', default: false },
  },
});
const ranks = Number(flags.ranks);
/** Without a GPU the program itself can be tried. */
const device = flags.device === 'cpu' ? 'cpu' : 'cuda';

/** The result that a rank prints. @param {string[]} args @param {Record<string, string>} env */
function run(args, env) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [program, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'inherit'],
      timeout: Number(flags.timeout) * 1000,
      killSignal: 'SIGKILL',
    });
    let output = '';
    child.stdout.on('data', (/** @type {Buffer} */ chunk) => (output += chunk.toString()));
    child.on('error', reject);
    child.on('close', (code) => {
      const line = output.split('\n').find((text) => text.startsWith('result '));
      if (code === 0 && line !== undefined) resolve(JSON.parse(line.slice(7)));
      else reject(new Error(`rank ${env['RANK'] ?? ''} ended with ${String(code)}`));
    });
  });
}

/** @param {readonly TrainingCase[]} cases @returns {Promise<TrainingResult[][]>} */
async function runAll(cases) {
  const text = JSON.stringify(cases);
  if (flags.kind === 'threads') return /** @type {any} */ (run([String(ranks), text], {}));
  const port = await distributed.freePort();
  const found = await Promise.allSettled(
    Array.from({ length: ranks }, (_, rank) =>
      run(['0', text], {
        ...rankEnvironment(rank, ranks, port),
        ...(flags.kind === 'gloo' ? { PIPEWRIGHT_TEST_BACKEND: 'gloo' } : {}),
      }),
    ),
  );
  return found.map((one) => {
    if (one.status === 'rejected') throw one.reason;
    return /** @type {any} */ (one.value);
  });
}

const captures = (flags.kind === 'gloo' ? [false] : [false, true]).filter(
  (capture) => flags.captured === undefined || flags.captured === String(capture),
);
const cases = casesFor(ranks, [
  ...variationsFor(ranks),
  { model: 'mlp', varyRows: true, evaluate: true },
  { model: 'skip', varyRows: true },
])
  .filter((one) => flags.schedules?.split(',').includes(String(one.schedule)) ?? true)
  .flatMap((one) => captures.map((capture) => ({ ...one, device, capture })))
  // Recorded in the second step, then a step of other rows, then replays.
  .map((one) => (flags.early ? { ...one, earlyGradients: true } : one))
  .map((one) => (one.varyRows === true && captures.includes(true) ? { ...one, steps: 5 } : one))
  .filter((one) => title(one).includes(flags.only))
  // Hooks seed the dropout, and a step that is looked at cannot be captured; threads on one GPU draw from one generator.
  .filter((one) => one.model !== 'dropout' || !(one.capture || flags.kind === 'threads'));
const start = performance.now();
let failed = 0;
let oracleMs = 0;
/** @type {Map<string, TrainingResult>} */
const oracles = new Map();

/** The same for a case that is captured and one that is not. @param {TrainingCase} one */
function oracleOf(one) {
  const key = JSON.stringify({ ...one, capture: false });
  const known = oracles.get(key);
  if (known !== undefined) return known;
  const begin = performance.now();
  const made = plain(one);
  oracleMs += performance.now() - begin;
  oracles.set(key, made);
  return made;
}

/** A schedule in ranks of its own: one that hangs or fails does not take the others with it. @param {string} schedule */
async function compare(schedule) {
  const chunk = cases.filter((one) => one.schedule === schedule);
  let results;
  try {
    results = await runAll(chunk);
  } catch (error) {
    failed += chunk.length;
    const text = error instanceof Error ? error.message : String(error);
    console.log(`FAIL ${ranks} ranks, ${flags.kind}: all ${chunk.length} cases of ${schedule}: ${text}`);
    return;
  }
  chunk.forEach((one, i) => {
    const parts = results.map((ofRank) => /** @type {TrainingResult} */ (ofRank[i]));
    const found = differences(one, parts, oracleOf(one));
    if (found.length === 0) return;
    failed++;
    console.log(`FAIL ${ranks} ranks, ${flags.kind}: ${title(one)}: ${found.slice(0, 4).join('; ')}`);
  });
}

const waiting = [...new Set(cases.map((one) => String(one.schedule)))];
await Promise.all(
  Array.from({ length: Number(flags.jobs) }, async () => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await compare(next);
  }),
);
const seconds = (/** @type {number} */ ms) => (ms / 1000).toFixed(1);
console.log(
  `${failed === 0 ? 'PASS' : 'FAIL'} ${ranks} ranks, ${flags.kind}: ${cases.length - failed} of ${cases.length} cases equal plain training (${seconds(performance.now() - start)} s, oracle ${seconds(oracleMs)} s of it)`,
);
process.exit(failed === 0 ? 0 : 1);
