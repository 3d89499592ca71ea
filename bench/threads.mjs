// @ts-check
/**
 * @file How long a tensor takes from one rank to another: between threads, and between processes over gloo.
 *
 *   node bench/threads.mjs            all
 *   node bench/threads.mjs threads    only one part: threads, crowd, gloo
 *
 * Every figure is the best and the middle of many short bursts: other work on the machine only ever adds to them.
 */
import { spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { isMainThread } from 'node:worker_threads';

const here = new URL(import.meta.url);
const { distributed, ones, scope } = await import('@pipewright/torch');

/** @typedef {import('@pipewright/torch').distributed.ProcessGroup} ProcessGroup */
/** @typedef {{ name: string, unit: string, best: number, middle: number }} Figure */

/** @param {number[]} values @returns {{ best: number, middle: number }} */
function summarize(values) {
  const sorted = values.toSorted((a, b) => a - b);
  return { best: sorted[0] ?? 0, middle: sorted[sorted.length >> 1] ?? 0 };
}

/** Microseconds one way, from there and back. @param {number} bursts @param {number} length @param {() => void} exchange */
function pingPong(bursts, length, exchange) {
  const times = [];
  for (let burst = 0; burst < bursts; burst++) {
    const start = process.hrtime.bigint();
    for (let i = 0; i < length; i++) exchange();
    times.push(Number(process.hrtime.bigint() - start) / length / 2 / 1000);
  }
  return summarize(times);
}

/** There and back over a channel, from rank 0 to the last rank through all between. @param {ProcessGroup} group @param {number} bytes @param {number} bursts @param {number} length */
function channelRing(group, bytes, bursts, length) {
  const next = group.channel((group.rank + 1) % group.size);
  const before = group.channel((group.rank + group.size - 1) % group.size);
  const x = ones([bytes / 4]);
  const exchange =
    group.rank === 0
      ? () => {
          next.send(1, x);
          before.recv(1).dispose();
        }
      : () => {
          next.send(1, before.recv(1), { give: true });
        };
  group.barrier();
  const figures = pingPong(bursts, length, exchange);
  const hops = group.size / 2;
  return { best: figures.best / hops, middle: figures.middle / hops };
}

/** There and back with send and recv of known shape. @param {ProcessGroup} group @param {number} bytes @param {number} bursts @param {number} length */
function plainPingPong(group, bytes, bursts, length) {
  const peer = 1 - group.rank;
  const x = ones([bytes / 4]);
  group.barrier();
  return pingPong(
    bursts,
    length,
    group.rank === 0
      ? () => {
          group.send(x, peer);
          group.recv(x, peer);
        }
      : () => {
          group.recv(x, peer);
          group.send(x, peer);
        },
  );
}

/** Microseconds of an all-reduce. @param {ProcessGroup} group @param {number} bytes @param {number} bursts @param {number} length */
function allReduce(group, bytes, bursts, length) {
  const x = ones([bytes / 4]);
  group.barrier();
  const { best, middle } = pingPong(bursts, length, () => group.allReduce(x));
  return { best: best * 2, middle: middle * 2 };
}

/** What one rank measures. @param {ProcessGroup} group @param {string} part @returns {Figure[]} */
function measure(group, part) {
  const where = part === 'gloo' ? 'processes over gloo' : `threads, ${group.size} ranks`;
  /** @param {string} name @param {{ best: number, middle: number }} figures @returns {Figure} */
  const us = (name, figures) => ({ name: `${where}: ${name}`, unit: 'us', ...figures });
  /** @param {string} name @param {number} bytes @param {{ best: number, middle: number }} figures @returns {Figure} */
  const rate = (name, bytes, { best, middle }) => ({
    name: `${where}: ${name}`,
    unit: 'GB/s',
    best: bytes / best / 1000,
    middle: bytes / middle / 1000,
  });
  return scope(() => {
    if (part === 'threads') {
      return [
        us('hand-over of a 4 KB tensor, one way', channelRing(group, 4096, 2000, 100)),
        us('hand-over of a 64 MB tensor, one way', channelRing(group, 64 << 20, 500, 100)),
        us('all-reduce of 4 KB', allReduce(group, 4096, 300, 50)),
        us('all-reduce of 4 MB', allReduce(group, 4 << 20, 30, 3)),
        us(
          'barrier',
          pingPong(300, 50, () => group.barrier()),
        ),
      ];
    }
    if (part === 'crowd') return [us('hand-over of a 4 KB tensor, one way', channelRing(group, 4096, 100, 25))];
    return [
      us('send and recv of 4 KB, one way', plainPingPong(group, 4096, 60, 50)),
      us('channel message of 4 KB, one way', channelRing(group, 4096, 60, 50)),
      us('channel message of 256 KB, one way', channelRing(group, 256 << 10, 30, 20)),
      us('all-reduce of 4 KB', allReduce(group, 4096, 60, 20)),
      rate('send and recv of 8 MB', 8 << 20, plainPingPong(group, 8 << 20, 40, 2)),
      rate('channel message of 8 MB', 8 << 20, channelRing(group, 8 << 20, 40, 2)),
      rate('send and recv of 64 MB', 64 << 20, plainPingPong(group, 64 << 20, 12, 1)),
      rate('channel message of 64 MB', 64 << 20, channelRing(group, 64 << 20, 12, 1)),
    ];
  });
}

/** A thread rank. @param {{ part: string }} data */
export function main({ part }) {
  return measure(distributed.initProcessGroup({ timeoutMs: 120_000 }), part);
}

/** @param {Figure[]} figures */
function print(figures) {
  for (const { name, unit, best, middle } of figures) {
    console.log(`| ${name} | ${best.toFixed(2)} ${unit} | ${middle.toFixed(2)} ${unit} |`);
  }
}

/** @returns {Promise<Figure[]>} */
async function runGloo() {
  const port = await distributed.freePort();
  const ends = [0, 1].map(
    (rank) =>
      new Promise((resolve, reject) => {
        const child = spawn(process.execPath, [fileURLToPath(here), 'rank'], {
          env: {
            ...process.env,
            RANK: String(rank),
            WORLD_SIZE: '2',
            MASTER_ADDR: '127.0.0.1',
            MASTER_PORT: String(port),
            PIPEWRIGHT_THREADS: '1',
          },
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        let text = '';
        child.stdout.on('data', (chunk) => (text += chunk));
        child.on('close', (code) =>
          code === 0 ? resolve(text) : reject(new Error(`rank ${rank} ended with ${code}`)),
        );
      }),
  );
  return JSON.parse((await Promise.all(ends))[0]);
}

if (isMainThread) {
  const asked = process.argv[2];
  if (asked === 'rank') {
    const group = distributed.initProcessGroup({ backend: 'gloo', timeoutMs: 120_000 });
    const figures = measure(group, 'gloo');
    distributed.destroyProcessGroup();
    if (group.rank === 0) console.log(JSON.stringify(figures));
  } else {
    console.log(`${availableParallelism()} cores, Node ${process.version}\n\n| what | best | middle |\n|---|---|---|`);
    if (asked === undefined || asked === 'threads') {
      print(/** @type {Figure[]} */ ((await distributed.spawnThreads(2, here, { part: 'threads' }).done)[0]));
    }
    if (asked === undefined || asked === 'crowd') {
      print(/** @type {Figure[]} */ ((await distributed.spawnThreads(4, here, { part: 'crowd' }).done)[0]));
    }
    if (asked === undefined || asked === 'gloo') print(await runGloo());
  }
}
