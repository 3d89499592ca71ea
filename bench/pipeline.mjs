// @ts-check
/**
 * @file Training steps under schedules, here and in PyTorch's torch.distributed.pipelining on the same libtorch:
 * `node bench/pipeline.mjs`. All schedules of both sides are started together and take turns step by step, so that what else the
 * machine does meets all of them; medians, and the ratio turn by turn. PIPEWRIGHT_PYTHON names an interpreter with torch (none: only our
 * side). --only cpu-small,h200-large, --schedules 1F1B,ZB1P, --turns 20. --before FOLDER: another built clone, of an earlier commit, takes turns too.
 */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { cuda, distributed } from '@pipewright/torch';
import { inTurns, median, ratios, WARMUP } from './turns.mjs';

/** @typedef {import('./pipeline-rank.mjs').Setting} Setting */
/** @typedef {import('./turns.mjs').Program} Program */

const cpu = { device: 'cpu', dtype: 'float32', ranks: 4, layers: 8, vocab: 256 };
const gpu = { device: 'cuda', dtype: 'bfloat16', ranks: 1, layers: 8 };
const small = { ...cpu, dim: 64, heads: 4, seq: 32, microbatchSize: 1, microbatches: 16 };
const medium = { ...cpu, dim: 512, heads: 8, seq: 128, microbatchSize: 2, microbatches: 16 };
const gpuSmall = { ...gpu, dim: 256, heads: 4, seq: 128, vocab: 256, microbatchSize: 1, microbatches: 16 };
const gpuLarge = { ...gpu, dim: 2048, heads: 16, seq: 1024, vocab: 32000, microbatchSize: 4, microbatches: 8 };

/** @typedef {{ schedule: string, stagesPerRank: number, inTorch?: boolean, earlyGradients?: boolean }} Run */

const LATE = '1F1B late'; // gradients sent at the end of a backward, not in its middle: what the name means elsewhere

/** @type {Run[]} */
const cpuRuns = [
  { schedule: '1F1B', stagesPerRank: 1, inTorch: true },
  { schedule: '1F1B', stagesPerRank: 1, earlyGradients: false },
  { schedule: 'Interleaved1F1B', stagesPerRank: 2, inTorch: true },
  { schedule: 'InterleavedZeroBubble', stagesPerRank: 2, inTorch: true },
  { schedule: 'ZB1P', stagesPerRank: 1 },
  { schedule: 'ZBVZeroBubble', stagesPerRank: 2 },
];
/** @type {Run[]} */
const gpuRuns = [
  { schedule: 'Interleaved1F1B', stagesPerRank: 4, inTorch: true },
  { schedule: 'InterleavedZeroBubble', stagesPerRank: 4, inTorch: true },
];

// `burst`: steps of a turn, more than one where they are short: the first after a pause finds cold caches and sleeping threads,
// which in training no step does.
/** @type {Record<string, { setting: Omit<Setting, 'schedule' | 'stagesPerRank' | 'steps' | 'warmup'>, turns: number, burst: number, runs: Run[] }>} */
const all = {
  'cpu-small': {
    setting: small,
    turns: 20,
    burst: 10,
    runs: cpuRuns,
  },
  'cpu-medium': {
    setting: medium,
    turns: 12,
    burst: 1,
    runs: cpuRuns,
  },
  'h200-small': {
    setting: gpuSmall,
    turns: 10,
    burst: 5,
    runs: gpuRuns,
  },
  'h200-large': {
    setting: gpuLarge,
    turns: 5,
    burst: 10,
    runs: gpuRuns,
  },
};

async function compare() {
  const { values: flags } = parseArgs({
    options: {
      only: { type: 'string', default: Object.keys(all).join(',') },
      schedules: { type: 'string' },
      turns: { type: 'string' },
      before: { type: 'string' },
      run: { type: 'string' },
    },
  });
  if (flags.run !== undefined) {
    console.log(JSON.stringify(await ours(JSON.parse(flags.run))));
    return;
  }
  const python = process.env['PIPEWRIGHT_PYTHON'];
  for (const name of flags.only.split(',')) {
    const entry = all[name];
    if (entry === undefined) throw new Error(`no setting '${name}'; there are ${Object.keys(all).join(', ')}`);
    const wanted = flags.schedules?.split(',');
    const runs = entry.runs.filter((run) => wanted?.includes(labelOf(run)) ?? true);
    if (runs.length === 0)
      throw new Error(`no schedule of ${flags.schedules}; there are ${entry.runs.map(labelOf).join(', ')}`);
    const onGpu = entry.setting.device === 'cuda';
    if (onGpu && !cuda.isAvailable()) continue;
    const { burst, turns: usual } = entry;
    const turns = Number(flags.turns ?? usual);
    /** @type {Record<string, Program>} */
    const programs = {};
    for (const run of runs) {
      const { inTorch, ...how } = run;
      const setting = { ...entry.setting, warmup: WARMUP * burst, steps: turns * burst, ...how };
      programs[`${labelOf(run)} ours`] = (pipe) => mine({ ...setting, pace: { pipe, burst } });
      const { before } = flags;
      if (before !== undefined)
        programs[`${labelOf(run)} before`] = (pipe) =>
          mine({ ...setting, pace: { pipe, burst } }, join(before, 'bench/pipeline.mjs'));
      if (onGpu)
        programs[`${labelOf(run)} captured`] = (pipe) => mine({ ...setting, pace: { pipe, burst }, capture: true });
      if (python !== undefined && inTorch) {
        const port = await distributed.freePort();
        programs[`${labelOf(run)} python`] = (pipe) => theirs(python, { ...setting, pace: { pipe, burst }, port });
      }
    }
    const sides = await inTurns(turns, burst, programs);
    for (const label of runs.map(labelOf)) {
      const [our, captured, other, before] = ['ours', 'captured', 'python', 'before'].map(
        (side) => sides[`${label} ${side}`],
      );
      if (our === undefined) throw new Error(`${label} did not run`);
      const parts = [
        `${name.padEnd(11)} ${label.padEnd(22)} ours ${median(our.times).toFixed(2)} ms`,
        ...(captured === undefined ? [] : [`captured ${median(captured.times).toFixed(2)} ms ${captured.why ?? ''}`]),
      ];
      if (other !== undefined)
        parts.push(
          `python ${median(other.times).toFixed(2)} ms`,
          `ratio ${ratios(our, other)}${captured === undefined ? '' : `, captured ${ratios(captured, other)}`}`,
          `peak ${our.peakMiB.toFixed(0)} / ${other.peakMiB.toFixed(0)} MiB = ${(our.peakMiB / other.peakMiB).toFixed(2)}`,
        );
      if (before !== undefined)
        parts.push(`before ${median(before.times).toFixed(2)} ms`, `ratio ${ratios(our, before)}`);
      for (const base of ['1F1B', LATE]) {
        const side = label.startsWith('1F1B') ? undefined : sides[`${base} ours`];
        if (side !== undefined) parts.push(`to our ${base} ${ratios(our, side)}`);
      }
      console.log(parts.join('  '));
    }
  }
}

/** @param {Run} run */
function labelOf({ schedule, earlyGradients }) {
  return earlyGradients === false ? LATE : schedule;
}

/** @param {Setting} setting @param {string} program */
function mine(setting, program = fileURLToPath(import.meta.url)) {
  return { command: process.execPath, args: [program, '--run', JSON.stringify(setting)] };
}

/** @param {string} python @param {Setting & { port: number }} setting */
function theirs(python, setting) {
  const program = fileURLToPath(new URL('./python/pipeline.py', import.meta.url));
  return { command: python, args: [program, JSON.stringify(setting)] };
}

/** One run of ours, in this process. @param {Setting} setting */
async function ours(setting) {
  const rank = new URL('./pipeline-rank.mjs', import.meta.url);
  if (setting.ranks === 1) return (await import(rank.href)).main(setting);
  const results = /** @type {{ times: number[], peakMiB: number }[]} */ (
    await distributed.spawnThreads(setting.ranks, rank, setting, { threadsPerRank: 1 }).done
  );
  return results[0];
}

if (isMainThread) await compare();
