// @ts-check
/**
 * @file Training steps under schedules, here and in PyTorch's torch.distributed.pipelining on the same libtorch:
 * `node bench/pipeline.mjs`. Both sides take turns; the median step of all rounds. PIPEWRIGHT_PYTHON names an interpreter
 * with torch (none: only our side). --only cpu-small,h200-large, --rounds 3, --overhead (cost of an action without compute).
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { cuda, distributed } from '@pipewright/torch';

/** @typedef {import('./pipeline-rank.mjs').Setting} Setting */

const cpu = { device: 'cpu', dtype: 'float32', ranks: 4, layers: 8, vocab: 256, steps: 10, warmup: 3 };
const gpu = { device: 'cuda', dtype: 'bfloat16', ranks: 1, stagesPerRank: 4, layers: 8, steps: 10, warmup: 5 };
const small = { ...cpu, dim: 64, heads: 4, seq: 32, microbatchSize: 1, microbatches: 16 };
const medium = { ...cpu, dim: 512, heads: 8, seq: 128, microbatchSize: 2, microbatches: 16, steps: 4, warmup: 2 };
const gpuSmall = { ...gpu, dim: 256, heads: 4, seq: 128, vocab: 256, microbatchSize: 1, microbatches: 16 };
const gpuLarge = { ...gpu, dim: 2048, heads: 16, seq: 1024, vocab: 32000, microbatchSize: 4, microbatches: 8 };

/** @type {Record<string, { setting: Omit<Setting, 'schedule' | 'stagesPerRank'> & { stagesPerRank?: number }, runs: [schedule: string, stagesPerRank: number, inTorch: boolean][] }>} */
const all = {
  'cpu-small': {
    setting: small,
    runs: [
      ['1F1B', 1, true],
      ['Interleaved1F1B', 2, true],
      ['InterleavedZeroBubble', 2, true],
      ['ZB1P', 1, false],
      ['ZBVZeroBubble', 2, false],
    ],
  },
  'cpu-medium': {
    setting: medium,
    runs: [
      ['1F1B', 1, true],
      ['Interleaved1F1B', 2, true],
      ['InterleavedZeroBubble', 2, true],
      ['ZB1P', 1, false],
    ],
  },
  'h200-small': {
    setting: gpuSmall,
    runs: [
      ['Interleaved1F1B', 4, true],
      ['InterleavedZeroBubble', 4, true],
    ],
  },
  'h200-large': {
    setting: gpuLarge,
    runs: [
      ['Interleaved1F1B', 4, true],
      ['InterleavedZeroBubble', 4, true],
    ],
  },
};

if (isMainThread) await compare();

async function compare() {
  const { values: flags } = parseArgs({
    options: {
      only: { type: 'string', default: Object.keys(all).join(',') },
      rounds: { type: 'string', default: '3' },
      run: { type: 'string' },
    },
  });
  if (flags.run !== undefined) {
    console.log(JSON.stringify(await ours(JSON.parse(flags.run))));
    return;
  }
  const python = process.env['PIPEWRIGHT_PYTHON'];
  /** @type {Map<string, number>} */
  const best = new Map();
  for (const name of flags.only.split(',')) {
    const entry = all[name];
    if (entry === undefined) throw new Error(`no setting '${name}'; there are ${Object.keys(all).join(', ')}`);
    const onGpu = entry.setting.device === 'cuda';
    if (onGpu && !cuda.isAvailable()) continue;
    for (const [schedule, stagesPerRank, inTorch] of entry.runs) {
      /** @type {Setting} */
      const setting = { ...entry.setting, schedule, stagesPerRank };
      /** @type {Record<string, { times: number[], peakMiB: number, why?: string | null }[]>} */
      const sides = { ours: [], captured: [], python: [] };
      for (let round = 0; round < Number(flags.rounds); round++) {
        sides['ours']?.push(
          start(process.execPath, [fileURLToPath(import.meta.url), '--run', JSON.stringify(setting)]),
        );
        if (onGpu)
          sides['captured']?.push(
            start(process.execPath, [
              fileURLToPath(import.meta.url),
              '--run',
              JSON.stringify({ ...setting, capture: true }),
            ]),
          );
        if (python !== undefined && inTorch)
          sides['python']?.push(
            start(python, [
              fileURLToPath(new URL('./python/pipeline.py', import.meta.url)),
              JSON.stringify({ ...setting, port: 29000 + Math.floor(Math.random() * 2000) }),
            ]),
          );
      }
      /** @param {string} side */
      const median = (side) => {
        const times = (sides[side] ?? []).flatMap((one) => one.times).sort((a, b) => a - b);
        return times.length === 0 ? Number.NaN : /** @type {number} */ (times[Math.floor(times.length / 2)]);
      };
      /** @param {string} side */
      const peak = (side) => Math.min(...(sides[side] ?? []).map((one) => one.peakMiB));
      const mine = median('ours');
      best.set(`${name} ${schedule}`, mine);
      const parts = [
        `${name.padEnd(11)} ${schedule.padEnd(22)} ours ${mine.toFixed(2)} ms`,
        ...(onGpu ? [`captured ${median('captured').toFixed(2)} ms ${sides['captured']?.[0]?.why ?? ''}`] : []),
        ...(sides['python']?.length === 0
          ? []
          : [
              `python ${median('python').toFixed(2)} ms`,
              `ratio ${(mine / median('python')).toFixed(3)}${onGpu ? `, captured ${(median('captured') / median('python')).toFixed(3)}` : ''}`,
              `peak ${peak('ours').toFixed(0)} / ${peak('python').toFixed(0)} MiB = ${(peak('ours') / peak('python')).toFixed(2)}`,
            ]),
      ];
      console.log(parts.join('  '));
    }
  }
  for (const [key, time] of best) {
    const [name, schedule] = key.split(' ');
    const base = best.get(`${name} 1F1B`);
    if (base !== undefined && schedule !== '1F1B')
      console.log(`${name} ${schedule} / our 1F1B: ${(time / base).toFixed(3)}`);
  }
}

/** @param {string} command @param {string[]} args @returns {{ times: number[], peakMiB: number, why?: string | null }} */
function start(command, args) {
  const done = spawnSync(command, args, {
    encoding: 'utf8',
    env: { ...process.env, OMP_NUM_THREADS: '1', PYTHONWARNINGS: 'ignore' },
  });
  const line = done.stdout.split('\n').find((text) => text.startsWith('{'));
  if (line === undefined) throw new Error(`${command} ${args[0]}: ${done.stderr.slice(-2000)}`);
  return JSON.parse(line);
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
