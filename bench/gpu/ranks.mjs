// @ts-check
/**
 * @file Training steps of pipelines over several GPU ranks, here and in PyTorch, in turns: `node bench/gpu/ranks.mjs --reference DIR`
 * (the folder of reference_parallel.py; without it only our side). --only small-2,large-2 --rounds 2; --early: gradients leave in the middle of backwards; --device cpu tries the program itself. With more ranks than GPUs
 * MPS is started unless it runs. One line of JSON per run, then medians and their ratios beside the goals; peak memory is that of all ranks together. Of our side also what a
 * step takes of the host until all is started (rank 0), and of the processors (all ranks).
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { distributed } from '@pipewright/torch';
import { mpsEnvironment, startMps, stopMps } from '../../tests/gpu/mps.mjs';
import { queuesOf, rankEnvironment } from '../../tests/gpu/rank-environment.mjs';
import { main as parallelRank } from '../parallel-rank.mjs';
import { main as pipelineRank } from '../pipeline-rank.mjs';

const small = { layers: 8, dim: 256, heads: 4, seq: 128, vocab: 256, microbatchSize: 1, microbatches: 16 };
const large = { layers: 8, dim: 2048, heads: 16, seq: 1024, vocab: 32000, microbatchSize: 4, microbatches: 8 };

/** @typedef {'none' | 'replicate' | 'shards'} Wrap */
/** @typedef {{ size: typeof small, ranks: number, schedule: string, stagesPerRank: number, inTorch: boolean, captures: boolean[], dp?: number, wrap?: Wrap, threads?: true }} Run */

/** Ranks that are threads of one process. @param {number} ranks @returns {Run} */
const threads = (ranks) => ({
  size: small,
  ranks,
  schedule: '1F1B',
  stagesPerRank: 1,
  inTorch: false,
  captures: [false, true],
  threads: true,
});

/** A zero bubble, which PyTorch does not get through here. @param {typeof small} size @param {number} ranks @returns {Run} */
const zbv = (size, ranks) => ({
  size,
  ranks,
  schedule: 'ZBVZeroBubble',
  stagesPerRank: 2,
  inTorch: false,
  captures: [false, true],
});

/** Two pipelines of two ranks beside each other. @param {typeof small} size @param {Wrap} wrap @returns {Run} */
const parallel = (size, wrap) => ({
  size,
  ranks: 4,
  schedule: '1F1B',
  stagesPerRank: 1,
  inTorch: true,
  captures: [false],
  dp: 2,
  wrap,
});
/** How PyTorch's program calls it. @type {Record<Wrap, string>} */
const inPython = { none: 'none', replicate: 'ddp', shards: 'fsdp' };

/** @type {Record<string, Run>} */
const runs = {
  'small-2': { size: small, ranks: 2, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false, true] },
  'small-4': { size: small, ranks: 4, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false, true] },
  'small-2x2': {
    size: small,
    ranks: 2,
    schedule: 'Interleaved1F1B',
    stagesPerRank: 2,
    inTorch: true,
    captures: [false, true],
  },
  'small-zbv-2': zbv(small, 2),
  'small-zbv-4': zbv(small, 4),
  'large-2': { size: large, ranks: 2, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false, true] },
  'large-4': { size: large, ranks: 4, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false, true] },
  'large-zbv-2': zbv(large, 2),
  'large-zbv-4': zbv(large, 4),
  'threads-1': threads(1),
  'threads-2': threads(2),
  'threads-4': threads(4),
  'small-none-2x2': parallel(small, 'none'),
  'small-ddp-2x2': parallel(small, 'replicate'),
  'small-fsdp-2x2': parallel(small, 'shards'),
  'large-ddp-2x2': parallel(large, 'replicate'),
  'large-fsdp-2x2': parallel(large, 'shards'),
};

/** Goals for the ratio to PyTorch: of time, not captured and captured, and of peak memory. @param {Run} run */
function goalsOf({ size, wrap }) {
  if (wrap !== undefined)
    return { eager: size === small ? 0.6 : 0.9, captured: null, peak: wrap === 'shards' ? 1 : null };
  return size === small ? { eager: 0.6, captured: 0.25, peak: 0.85 } : { eager: 0.92, captured: 0.92, peak: 0.85 };
}

/** The last line of JSON that a program prints. @param {string} program @param {string[]} args @param {Record<string, string>} env */
function lineOf(program, args, env) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      env: { ...mpsEnvironment(), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: 90_000,
      killSignal: 'SIGKILL',
    });
    let output = '';
    let errors = '';
    child.stdout.on('data', (/** @type {Buffer} */ chunk) => (output += chunk.toString()));
    child.stderr.on('data', (/** @type {Buffer} */ chunk) => (errors += chunk.toString()));
    child.on('close', (code) => {
      const line = output
        .trim()
        .split('\n')
        .reverse()
        .find((text) => text.startsWith('{'));
      if (line === undefined) resolve({ failed: `ended with ${String(code)}: ${errors.trim().slice(-600)}` });
      else resolve(JSON.parse(line));
    });
  });
}

/** @param {Run} run @param {string} folder @param {number} port */
async function reference({ size, ranks, schedule, stagesPerRank, dp = 1, wrap = 'none' }, folder, port) {
  const words = {
    device: flags.device,
    dtype: dtypeOf(),
    wrap: inPython[wrap],
    dp,
    pp: ranks / dp,
    schedule,
    'stages-per-rank': stagesPerRank,
    layers: size.layers,
    dim: size.dim,
    heads: size.heads,
    seq: size.seq,
    vocab: size.vocab,
    'microbatch-size': size.microbatchSize,
    microbatches: size.microbatches,
    port,
  };
  const args = Object.entries(words).flatMap(([key, value]) => [`--${key}`, String(value)]);
  const python = process.env['PIPEWRIGHT_PYTHON'] ?? 'python3';
  return lineOf(python, [join(folder, 'reference_parallel.py'), ...args], queuesOf(ranks));
}

/** @param {Run} run @param {boolean} capture @param {number} port */
async function ours({ size, ranks, schedule, stagesPerRank, dp, wrap, threads: isThreads }, capture, port) {
  const setting = {
    ...size,
    device: flags.device,
    dtype: dtypeOf(),
    ranks,
    schedule,
    stagesPerRank,
    steps: 10,
    warmup: 4,
    capture,
    ...(flags.early ? { earlyGradients: true } : {}),
    ...(dp === undefined ? {} : { pp: ranks / dp, dp, wrap }),
  };
  if (isThreads) {
    const args = [fileURLToPath(import.meta.url), '--threads', JSON.stringify(setting)];
    const result = await lineOf(process.execPath, args, {});
    return result.failed === undefined ? summaryOf(result.ranks) : result;
  }
  const found = await Promise.all(
    Array.from({ length: ranks }, (_, rank) =>
      lineOf(process.execPath, [fileURLToPath(import.meta.url), '--rank', JSON.stringify(setting)], {
        ...rankEnvironment(rank, ranks, port),
        PIPEWRIGHT_THREADS: '1',
      }),
    ),
  );
  const failed = found.find((one) => one.failed !== undefined);
  return failed ?? summaryOf(found, ranks);
}

/** What the ranks found, as one; ranks of one process see the memory of all. @param {any[]} found @param {number} processes */
function summaryOf(found, processes = 1) {
  return {
    stepMs: median(found[0].times),
    peakMiB: Math.round(found.slice(0, processes).reduce((sum, { peakMiB }) => sum + peakMiB, 0)),
    // Measured by one of the two programs.
    ...(found[0].hostMs === undefined
      ? {}
      : {
          hostMs: median(found[0].hostMs),
          cpuMs: found.slice(0, processes).reduce((sum, { cpuMs }) => sum + cpuMs, 0),
        }),
    why: found.map(({ why }) => why).find((why) => why !== null) ?? null,
    loss: found.at(-1).loss,
  };
}

const { values: flags } = parseArgs({
  options: {
    rank: { type: 'string' },
    threads: { type: 'string' },
    reference: { type: 'string' },
    device: { type: 'string', default: 'cuda' },
    only: { type: 'string', default: Object.keys(runs).join(',') },
    rounds: { type: 'string', default: '2' },
    early: { type: 'boolean', default: false },
  },
});

/** What both sides compute with: the flag is for trying the program where there is no GPU. */
function dtypeOf() {
  return flags.device === 'cuda' ? 'bfloat16' : 'float32';
}

const median = (/** @type {number[]} */ values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

if (flags.threads !== undefined) {
  const setting = JSON.parse(flags.threads);
  const program = new URL('../pipeline-rank.mjs', import.meta.url);
  const ranks = await distributed.spawnThreads(setting.ranks, program, setting).done;
  console.log(JSON.stringify({ ranks }));
} else if (flags.rank !== undefined) {
  const setting = JSON.parse(flags.rank);
  const result = setting.dp === undefined ? pipelineRank(setting) : parallelRank(setting);
  distributed.destroyProcessGroup();
  console.log(JSON.stringify(result));
} else {
  const names = flags.only.split(',');
  const unknown = names.find((name) => runs[name] === undefined);
  if (unknown !== undefined) throw new Error(`no run '${unknown}'; there are ${Object.keys(runs).join(', ')}`);
  if (flags.device === 'cuda') {
    const problem = startMps();
    if (problem !== null) console.log(`ranks that share a GPU take turns: ${problem}`);
  }
  for (const name of names) {
    const run = /** @type {Run} */ (runs[name]);
    /** @type {Map<string, { stepMs: number, peakMiB: number }[]>} */
    const found = new Map();
    for (let round = 0; round < Number(flags.rounds); round++) {
      const turns = [
        ...(run.inTorch && flags.reference !== undefined ? ['PyTorch'] : []),
        ...run.captures.map((capture) => (capture ? 'captured' : 'eager')),
      ];
      for (const turn of round % 2 === 0 ? turns : turns.reverse()) {
        const port = await distributed.freePort();
        const result =
          turn === 'PyTorch'
            ? await reference(run, /** @type {string} */ (flags.reference), port)
            : await ours(run, turn === 'captured', port);
        console.log(JSON.stringify({ name, turn, round, ...result }));
        if (result.failed === undefined) found.set(turn, [...(found.get(turn) ?? []), result]);
      }
    }
    const texts = [...found].map(
      ([turn, results]) =>
        `${turn} ${median(results.map(({ stepMs }) => stepMs))?.toFixed(1)} ms, ${median(results.map(({ peakMiB }) => peakMiB))} MiB`,
    );
    console.log(`${name}: ${texts.join('; ')}`);
    const middle = (/** @type {string} */ turn, /** @type {'stepMs' | 'peakMiB'} */ what) =>
      median((found.get(turn) ?? []).map((one) => one[what]));
    const goals = goalsOf(run);
    for (const turn of /** @type {const} */ (['eager', 'captured'])) {
      if (!found.has('PyTorch') || !found.has(turn)) continue;
      const ratioOf = (/** @type {'stepMs' | 'peakMiB'} */ what) =>
        (middle(turn, what) ?? 0) / (middle('PyTorch', what) ?? 0);
      const text = (/** @type {number} */ ratio, /** @type {number | null} */ goal) =>
        goal === null ? ratio.toFixed(3) : `${ratio.toFixed(3)} (goal ${goal}: ${ratio <= goal ? 'met' : 'missed'})`;
      console.log(
        `  ${turn}: time ${text(ratioOf('stepMs'), goals[turn])}, peak memory ${text(ratioOf('peakMiB'), goals.peak)}`,
      );
    }
  }
  stopMps();
}
