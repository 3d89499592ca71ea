// @ts-check
/**
 * @file Training steps of pipelines over several GPU ranks, here and in PyTorch, in turns: `node bench/gpu-ranks.mjs --reference DIR`
 * (the folder of reference_parallel.py; without it only our side). --only small-2,large-2 --rounds 2. With more ranks than GPUs
 * start MPS first. One line of JSON per run, then a table of medians; peak memory is that of all ranks together.
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { cuda, distributed } from '@pipewright/torch';
import { main } from './pipeline-rank.mjs';

const small = { layers: 8, dim: 256, heads: 4, seq: 128, vocab: 256, microbatchSize: 1, microbatches: 16 };
const large = { layers: 8, dim: 2048, heads: 16, seq: 1024, vocab: 32000, microbatchSize: 4, microbatches: 8 };

/** @typedef {{ size: typeof small, ranks: number, schedule: string, stagesPerRank: number, inTorch: boolean, captures: boolean[] }} Run */

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
  'small-zbv-2': {
    size: small,
    ranks: 2,
    schedule: 'ZBVZeroBubble',
    stagesPerRank: 2,
    inTorch: false,
    captures: [false, true],
  },
  'large-2': { size: large, ranks: 2, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false, true] },
  'large-4': { size: large, ranks: 4, schedule: '1F1B', stagesPerRank: 1, inTorch: true, captures: [false] },
  'large-zbv-2': {
    size: large,
    ranks: 2,
    schedule: 'ZBVZeroBubble',
    stagesPerRank: 2,
    inTorch: false,
    captures: [false],
  },
};

/** The last line of JSON that a program prints. @param {string} program @param {string[]} args @param {Record<string, string>} env */
function lineOf(program, args, env) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      env: { ...process.env, ...env },
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
async function reference({ size, ranks, schedule, stagesPerRank }, folder, port) {
  const words = {
    device: 'cuda',
    dtype: 'bfloat16',
    wrap: 'none',
    dp: 1,
    pp: ranks,
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
  return lineOf(python, [join(folder, 'reference_parallel.py'), ...args], {});
}

/** @param {Run} run @param {boolean} capture @param {number} port */
async function ours({ size, ranks, schedule, stagesPerRank }, capture, port) {
  const setting = {
    ...size,
    device: 'cuda',
    dtype: 'bfloat16',
    ranks,
    schedule,
    stagesPerRank,
    steps: 10,
    warmup: 4,
    capture,
  };
  const shared = ranks > cuda.deviceCount();
  const found = await Promise.all(
    Array.from({ length: ranks }, (_, rank) =>
      lineOf(process.execPath, [fileURLToPath(import.meta.url), '--rank', JSON.stringify(setting)], {
        RANK: String(rank),
        LOCAL_RANK: String(rank),
        WORLD_SIZE: String(ranks),
        MASTER_ADDR: '127.0.0.1',
        MASTER_PORT: String(port),
        PIPEWRIGHT_THREADS: '1',
        ...(shared ? { NCCL_HOSTID: `host${rank}`, NCCL_SOCKET_IFNAME: 'lo', NCCL_IB_DISABLE: '1' } : {}),
      }),
    ),
  );
  const failed = found.find((one) => one.failed !== undefined);
  if (failed !== undefined) return failed;
  const times = [...found[0].times].sort((a, b) => a - b);
  return {
    stepMs: times[Math.floor(times.length / 2)],
    peakMiB: Math.round(found.reduce((sum, { peakMiB }) => sum + peakMiB, 0)),
    why: found.map(({ why }) => why).find((why) => why !== null) ?? null,
    loss: found.at(-1).loss,
  };
}

const { values: flags } = parseArgs({
  options: {
    rank: { type: 'string' },
    reference: { type: 'string' },
    only: { type: 'string', default: Object.keys(runs).join(',') },
    rounds: { type: 'string', default: '2' },
  },
});

const median = (/** @type {number[]} */ values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

if (flags.rank !== undefined) {
  const result = main(JSON.parse(flags.rank));
  distributed.destroyProcessGroup();
  console.log(JSON.stringify(result));
} else {
  for (const name of flags.only.split(',')) {
    const run = runs[name];
    if (run === undefined) throw new Error(`no run '${name}'; there are ${Object.keys(runs).join(', ')}`);
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
  }
}
