// @ts-check
/**
 * @file How fast ranks on one GPU start kernels side by side, as threads of one process and as processes: `node bench/gpu/launches.mjs`.
 * Microseconds between two small kernels of a rank while all of them start some, outside of a graph and as one graph of a thousand.
 * Where it rises with the number of threads, they wait for each other in the driver; processes share nothing there. Start MPS first.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { isMainThread } from 'node:worker_threads';
import { add, cuda, distributed, ones, scope } from '@pipewright/torch';
import { rankEnvironment } from '../../tests/gpu/rank-environment.mjs';

const CALLS = 1000;

/** Microseconds per kernel: started one by one, freed at once or kept, and in a graph. @param {string} device */
export function main(device) {
  const group = distributed.initProcessGroup({ backend: isMainThread ? 'gloo' : undefined });
  const onGpu = device === 'cuda';
  const x = ones([64], { device: onGpu ? 'cuda' : 'cpu' });
  const inPlace = () => {
    for (let i = 0; i < CALLS; i++) x.add_(1);
  };
  const fresh = () => {
    for (let i = 0; i < CALLS; i++) scope(() => void add(x, x));
  };
  const graph = onGpu && isMainThread ? new cuda.CudaGraph() : null;
  graph?.capture(inPlace, { warmup: 1 });
  const ways = [inPlace, fresh, ...(graph === null ? [] : [() => graph.replay()])];
  return ways.map((way) => {
    let best = Number.POSITIVE_INFINITY;
    for (let round = 0; round < 12; round++) {
      if (onGpu) cuda.synchronize();
      group.barrier();
      const start = performance.now();
      way();
      if (onGpu) cuda.synchronize();
      best = Math.min(best, performance.now() - start);
      group.barrier();
    }
    return (best * 1000) / CALLS;
  });
}

/** @param {number} ranks @param {string} device @returns {Promise<number[][]>} */
async function onProcesses(ranks, device) {
  const port = await distributed.freePort();
  return Promise.all(
    Array.from({ length: ranks }, (_, rank) => {
      const child = spawn(process.execPath, [fileURLToPath(import.meta.url), '--rank', '--device', device], {
        stdio: ['ignore', 'pipe', 'inherit'],
        timeout: 60_000,
        killSignal: 'SIGKILL',
        env: { ...process.env, ...rankEnvironment(rank, ranks, port) },
      });
      let output = '';
      child.stdout.on('data', (/** @type {Buffer} */ chunk) => (output += chunk.toString()));
      return new Promise((resolve) => child.on('close', (code) => resolve(code === 0 ? JSON.parse(output) : [])));
    }),
  );
}

if (isMainThread) {
  const { values: flags } = parseArgs({
    options: { device: { type: 'string', default: 'cuda' }, rank: { type: 'boolean', default: false } },
  });
  if (flags.rank) {
    const found = main(flags.device);
    distributed.destroyProcessGroup();
    console.log(JSON.stringify(found));
  } else
    for (const kind of ['threads', 'processes'])
      for (const ranks of [1, 2, 4]) {
        const found = /** @type {number[][]} */ (
          kind === 'threads'
            ? await distributed.spawnThreads(ranks, new URL(import.meta.url), flags.device).done
            : await onProcesses(ranks, flags.device)
        );
        const worst = (/** @type {number} */ i) => Math.max(...found.map((each) => each[i] ?? Number.NaN)).toFixed(2);
        const names = ['in place', 'with a new result', 'in a graph'].slice(0, found[0]?.length);
        console.log(`${ranks} ${kind}: ${names.map((name, i) => `${name} ${worst(i)} us`).join(', ')}`);
      }
}
