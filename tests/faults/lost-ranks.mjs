// @ts-check
/**
 * @file Ends ranks of training jobs again and again, and compares the result with that of an undisturbed job, bit by bit.
 *
 *   node tests/faults/lost-ranks.mjs slots                 threads, 4 stages x 2 replicas: every rank at every action of a step
 *   node tests/faults/lost-ranks.mjs many --faults 500     threads: 500 faults at random places of one job, also while ranks connect
 *   node tests/faults/lost-ranks.mjs kill --faults 50      processes: SIGKILL at random moments, also during recovery and during a save
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { formatRecovery, launch } from '../../packages/pipewright/dist/index.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    faults: { type: 'string', default: '50' },
    seed: { type: 'string', default: '1' },
    schedule: { type: 'string', default: '1F1B' },
    verbose: { type: 'boolean', default: false },
  },
});
const [what = 'slots'] = positionals;
const random = generator(Number(values.seed));
const script = new URL('../../packages/pipewright/testing/ranks/surviving.mjs', import.meta.url);
const shape = { stages: 4, replicas: 2, microbatches: 4, schedule: values.schedule };
const ranks = shape.stages * shape.replicas;
const problems = { slots: everySlot, many: manyFaults, kill: randomKills };

const run = problems[/** @type {keyof typeof problems} */ (what)];
if (run === undefined) throw new RangeError(`lost-ranks: ${what} is not one of ${Object.keys(problems).join(', ')}`);
process.exitCode = (await run()) ? 0 : 1;

/** Every rank ends at every action of its row, one after the other, in a step of its own. */
async function everySlot() {
  const lengths = await rowLengths();
  const ends = lengths.flatMap((length, rank) =>
    Array.from({ length: length + 2 }, (_, i) => ({ rank, slot: i - 2, how: i % 2 === 0 ? 'exit' : 'throw' })),
  );
  return compare('threads', { steps: ends.length, ends: ends.map((end, step) => ({ ...end, step })) });
}

/** Faults at random places; every tenth while ranks connect after the one before. */
async function manyFaults() {
  const lengths = await rowLengths();
  const count = Number(values.faults);
  const ends = Array.from({ length: count }, (_, step) => {
    const rank = random(ranks);
    const slot = step % 10 === 9 ? -3 : random((lengths[rank] ?? 1) + 2) - 2;
    return { rank, step, slot, how: random(2) === 0 ? 'exit' : 'throw' };
  });
  return compare('threads', { steps: count, ends, copies: 2 });
}

/** Signals from outside. */
async function randomKills() {
  const count = Number(values.faults);
  return compare('processes', { steps: count * 12, pauseMs: 50, copies: 2, saveEvery: 3 }, count);
}

/** How many actions the row of each rank has. */
async function rowLengths() {
  const { results } = await job('threads', { steps: 1 }, 0);
  return results.map((result) => /** @type {{ row: number }} */ (result).row);
}

/** @typedef {import('../../packages/pipewright/dist/index.js').Launched} Launched */

/** Runs a job undisturbed and disturbed. @param {'threads' | 'processes'} mode @param {object} life @param {number} [kills] */
async function compare(mode, life, kills = 0) {
  const calm = await job(mode, { ...life, ends: [], pauseMs: undefined }, 0);
  const wild = await job(mode, life, kills);
  const isEqual = JSON.stringify(calm.results) === JSON.stringify(wild.results);
  const { recoveries, restarts } = wild;
  const alone = recoveries.filter(({ lost }) => lost.length === 1);
  const faults = recoveries.reduce((sum, { lost }) => sum + lost.length, 0);
  console.log(
    `${what} (${values.schedule}, seed ${values.seed}): ${faults} ranks lost in ${recoveries.length} recoveries, ${restarts} restarts of all; ${
      isEqual
        ? 'parameters, optimizers, generators, loaders, counters and all losses equal the undisturbed run'
        : 'DIFFERENT from the undisturbed run'
    }; ${(calm.ms / 1000).toFixed(1)} s undisturbed, ${(wild.ms / 1000).toFixed(1)} s with faults`,
  );
  table(
    'detection',
    recoveries.map((one) => one.noticedAfterMs + (wild.delays.get(one) ?? 0)),
  );
  table(
    'others stopped',
    alone.map((one) => one.stoppedAfterMs),
  );
  table(
    'new process ready',
    alone.map((one) => one.readyAfterMs),
  );
  table(
    'connect and state',
    alone.map((one) => one.repairedAfterMs - one.readyAfterMs),
  );
  table(
    'repair',
    alone.map((one) => one.repairedAfterMs),
  );
  table(
    'repair, several lost',
    recoveries.filter(({ lost }) => lost.length > 1).map((one) => one.repairedAfterMs),
  );
  table(
    'repetition',
    alone.map((one) => one.repeatedMs),
  );
  return isEqual;
}

/** @param {string} name @param {number[]} values */
function table(name, values) {
  if (values.length === 0) return;
  const sorted = values.toSorted((a, b) => a - b);
  const at = (/** @type {number} */ part) => `${Math.round(sorted[Math.floor(part * (sorted.length - 1))] ?? 0)} ms`;
  console.log(
    `  ${name.padEnd(22)} median ${at(0.5).padStart(8)}  95% ${at(0.95).padStart(8)}  most ${at(1).padStart(8)}  (${values.length})`,
  );
}

/** @param {'threads' | 'processes'} mode @param {object} life @param {number} kills */
async function job(mode, life, kills) {
  const folder = mkdtempSync(join(tmpdir(), 'lost-ranks-'));
  const began = performance.now();
  /** @type {number[]} */
  const killed = [];
  const delays = new Map();
  let restarts = 0;
  const launched = launch({
    ...{ ranks, mode, script, threadsPerRank: 1, timeoutMs: 120_000, maxRestarts: 10_000 },
    data: { ...shape, ...life, folder },
    onRecovery: (recovery) => {
      const cause = killed.filter((at) => at <= recovery.atMs).at(-1);
      if (cause !== undefined) delays.set(recovery, recovery.atMs - cause);
      if (values.verbose) console.log(formatRecovery(recovery));
    },
    onRestart: ({ report }) => {
      restarts++;
      console.log(`all ranks begin again: ${report}`);
    },
  });
  if (kills > 0) void killNow(launched, kills, killed);
  try {
    const results = await launched.done;
    return { results, ms: performance.now() - began, recoveries: launched.recoveries(), restarts, delays };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Kills ranks at random moments. After each kill it waits until all is well again; one in four is followed by another one before
 * that. @param {Launched} launched @param {number} count @param {number[]} killed
 */
async function killNow(launched, count, killed) {
  const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const seen = () => launched.recoveries().length + launched.restarts().length;
  while (!launched.places().some(({ step }) => step !== undefined)) await pause(200);
  while (killed.length < count) {
    const before = seen();
    for (let i = random(4) === 0 ? 2 : 1; i > 0; i--) {
      const pids = launched.pids();
      if (pids.length < ranks) return;
      try {
        process.kill(/** @type {number} */ (pids[random(ranks)]), 'SIGKILL');
        killed.push(Number(process.hrtime.bigint()) / 1e6);
      } catch {
        // it was being replaced
      }
      if (i > 1) await pause(random(2500));
    }
    while (seen() === before) await pause(20);
    await pause(random(700));
  }
}

/** Numbers below a bound that follow from a seed. @param {number} seed */
function generator(seed) {
  let state = seed >>> 0;
  return (/** @type {number} */ bound) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % bound;
  };
}
