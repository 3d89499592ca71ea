// @ts-check
/**
 * @file Data parallelism beside the pipeline, 2 x 2 ranks on the CPU: replicas and shards here, DistributedDataParallel and
 * fully_shard in PyTorch on the same libtorch: `PIPEWRIGHT_PYTHON=PYTHON node bench/parallel.mjs`. All take turns step by step, so
 * that what else the machine does meets all of them; medians, and the ratio turn by turn. Then what sharding costs, and the
 * recorded step beside the simulated one. --only small,medium, --ways replicate,shards, --turns 20. Without PIPEWRIGHT_PYTHON: only our side.
 */
import { loadavg } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { distributed } from '@pipewright/torch';
import { inTurns, median, ratios, WARMUP } from './turns.mjs';

/** @typedef {import('./parallel-rank.mjs').Setting} Setting */
/** @typedef {import('./turns.mjs').Program} Program */

const common = {
  device: 'cpu',
  dtype: 'float32',
  ranks: 4,
  pp: 2,
  dp: 2,
  layers: 8,
  vocab: 256,
  microbatches: 8,
  schedule: '1F1B',
  stagesPerRank: 1,
};

/** @type {Record<string, { setting: Omit<Setting, 'steps' | 'warmup' | 'wrap'>, turns: number, burst: number, goals: Record<string, number> }>} */
const all = {
  small: {
    setting: { ...common, dim: 64, heads: 4, seq: 32, microbatchSize: 1 },
    turns: 20,
    burst: 10,
    goals: { replicate: 0.55, shards: 0.4 },
  },
  medium: {
    setting: { ...common, dim: 512, heads: 8, seq: 128, microbatchSize: 2 },
    turns: 10,
    burst: 1,
    goals: { replicate: 0.9, shards: 0.85 },
  },
};

/** @type {readonly Setting['wrap'][]} */
const ways = ['none', 'replicate', 'optimizer', 'gradients', 'shards'];
const inTorch = ['replicate', 'shards'];

async function compare() {
  const { values: flags } = parseArgs({
    options: {
      only: { type: 'string', default: 'small,medium' },
      ways: { type: 'string', default: ways.join(',') },
      turns: { type: 'string' },
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
    const turns = Number(flags.turns ?? entry.turns);
    const chosen = ways.filter((way) => flags.ways.split(',').includes(way));
    const { burst } = entry;
    /** @type {Record<string, Program>} */
    const programs = {};
    for (const wrap of chosen) {
      const setting = { ...entry.setting, wrap, warmup: WARMUP * burst, steps: turns * burst };
      programs[`${wrap} ours`] = (pipe) => mine({ ...setting, pace: { pipe, burst } });
      if (python !== undefined && inTorch.includes(wrap)) {
        const port = await distributed.freePort();
        programs[`${wrap} python`] = (pipe) => theirs(python, { ...setting, pace: { pipe, burst }, port });
      }
    }
    const sides = await inTurns(turns, burst, programs);
    const alone = sides['none ours'];
    for (const wrap of chosen) {
      const [our, other] = [sides[`${wrap} ours`], sides[`${wrap} python`]];
      if (our === undefined) throw new Error(`${wrap} did not run`);
      const parts = [`${name.padEnd(7)} ${wrap.padEnd(10)} ours ${median(our.times).toFixed(2)} ms`];
      if (other !== undefined)
        parts.push(
          `python ${median(other.times).toFixed(2)} ms`,
          `ratio ${ratios(our, other)}, goal ${entry.goals[wrap]}`,
          `peak ${our.peakMiB.toFixed(0)} / ${other.peakMiB.toFixed(0)} MiB`,
        );
      // Without any reduction the two pipelines train two models: the least that a step beside another can take.
      if (wrap !== 'none' && alone !== undefined) parts.push(`to no reduction ${ratios(our, alone)}`);
      console.log(parts.join('  '));
    }
    await predict(name, entry.setting, turns * burst);
    console.log(
      `load of the machine: ${loadavg()
        .map((load) => load.toFixed(1))
        .join(' ')}`,
    );
  }
}

/** The recorded step beside the simulated one. @param {string} name @param {Omit<Setting, 'steps' | 'warmup' | 'wrap'>} setting @param {number} steps */
async function predict(name, setting, steps) {
  const { recordedMs, simulatedMs, hiddenShare, cores, kinds } =
    /** @type {{ recordedMs: number, simulatedMs: number, hiddenShare: number, cores: { count: number } | undefined, kinds: import('./parallel-rank.mjs').KindTimes[] }} */ (
      await ours({ ...setting, wrap: 'shards', record: true, warmup: 2, steps: Math.max(10, steps) })
    );
  console.log(
    `${name.padEnd(7)} shards     recorded ${recordedMs.toFixed(2)} ms, simulated ${simulatedMs.toFixed(2)} ms: ${(100 * (simulatedMs / recordedMs - 1)).toFixed(1)}%; ${(100 * hiddenShare).toFixed(0)}% of communication ran under computing`,
  );
  const ranks = 1 + Math.max(...kinds.map(({ rank }) => rank));
  console.log(
    `  milliseconds of a step, the quicker half of the steps; ${cores === undefined ? 'a core for each rank' : `${ranks} ranks of the pipeline on ${cores.count} ${cores.count === 1 ? 'core' : 'cores'}`}`,
  );
  /** @type {(first: string, ...more: string[]) => string} */
  const row = (first, ...more) => `  ${first.padEnd(18)}${more.map((cell) => cell.padStart(11)).join('')}`;
  console.log(row('', 'recorded', 'processor', 'simulated', 'difference'));
  for (const { rank, kind, recorded, processor, simulated } of kinds)
    console.log(
      row(
        `rank ${rank} ${kind}`,
        ...[recorded, processor, simulated, simulated - recorded].map((time) => time.toFixed(2)),
      ),
    );
}

/** @param {Setting} setting */
function mine(setting) {
  return { command: process.execPath, args: [fileURLToPath(import.meta.url), '--run', JSON.stringify(setting)] };
}

/** @param {string} python @param {Setting & { port: number }} setting */
function theirs(python, setting) {
  const program = fileURLToPath(new URL('./python/parallel.py', import.meta.url));
  return { command: python, args: [program, JSON.stringify(setting)] };
}

/** One run of ours, in this process. @param {Setting} setting */
async function ours(setting) {
  const rank = new URL('./parallel-rank.mjs', import.meta.url);
  const results = /** @type {any[]} */ (
    await distributed.spawnThreads(setting.ranks, rank, setting, { threadsPerRank: 1 }).done
  );
  return results[0];
}

if (isMainThread) await compare();
