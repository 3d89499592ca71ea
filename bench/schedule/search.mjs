/**
 * @file Times of the schedule package's simulator and searches, best of several runs.
 * Run: npm run build && node bench/schedule/search.mjs
 */
import {
  buildSchedule,
  improveSchedule,
  lower,
  optimalSchedule,
  searchSchedule,
  simulate,
  validate,
} from '@pipewright/schedule';

/** @param {() => unknown} run @param {number} times */
function best(run, times = 7) {
  let least = Number.POSITIVE_INFINITY;
  let cpu = Number.POSITIVE_INFINITY;
  let first = 0;
  for (let i = 0; i < times; i++) {
    const usage = process.cpuUsage();
    const before = performance.now();
    run();
    const took = performance.now() - before;
    const { user, system } = process.cpuUsage(usage);
    if (i === 0) first = took;
    least = Math.min(least, took);
    cpu = Math.min(cpu, (user + system) / 1000);
  }
  return { first, least, cpu };
}

/** @param {string} what @param {{ first: number, least: number, cpu: number }} times @param {string} result */
function report(what, times, result = '') {
  const [first, least, cpu] = [times.first, times.least, times.cpu].map((ms) => ms.toFixed(ms < 10 ? 1 : 0));
  console.log(`| ${what} | ${first} | ${least} | ${cpu} | ${result} |`);
}

console.log('| what | first run, ms | best run, ms | processor time of the best run, ms | result |');
console.log('| --- | --: | --: | --: | --- |');

const large = { ranks: 64, stagesPerRank: 4, microbatches: 512 };
const prepared = () => {
  const schedule = buildSchedule('Interleaved1F1B', large);
  const lowered = lower(schedule);
  if (validate(lowered).length > 0) throw new Error('the lowered order is not valid');
  return { schedule, lowered };
};
const costs = { F: 1, I: 1, W: 1, comm: 0.1 };
report('generate + lower + validate Interleaved1F1B 64 x 4 x 512', best(prepared));
const { schedule, lowered } = prepared();
report(
  'simulate it lowered',
  best(() => simulate(lowered, costs)),
  `${lowered.size.toLocaleString('en')} actions`,
);
report(
  'simulate its compute order',
  best(() => simulate(schedule, costs)),
  `${schedule.size.toLocaleString('en')} cells`,
);
report(
  'simulate it lowered, and memory over time',
  best(() => simulate(lowered, costs).peakMemory),
);

for (const { ranks, microbatches } of [
  { ranks: 8, microbatches: 24 },
  { ranks: 32, microbatches: 256 },
]) {
  const options = { ranks, microbatches, costs: { F: 18.5, I: 18.1, W: 9.3, comm: 0.6 } };
  const span = simulate(buildSchedule('ZB1P', options), options.costs).bubble.span;
  report(
    `ZB1P, p=${ranks}, m=${microbatches}`,
    best(() => buildSchedule('ZB1P', options)),
    `bubble ${(100 * span).toFixed(2)}% of the span`,
  );
}
for (const { ranks, microbatches } of [
  { ranks: 8, microbatches: 24 },
  { ranks: 32, microbatches: 256 },
]) {
  const { span } = simulate(buildSchedule('VHalf', { ranks, microbatches }));
  report(
    `VHalf, p=${ranks}, m=${microbatches}`,
    best(() => buildSchedule('VHalf', { ranks, microbatches })),
    `span ${span}`,
  );
}
for (const { ranks, microbatches, memoryLimit } of [
  { ranks: 4, microbatches: 8, memoryLimit: 5 },
  { ranks: 8, microbatches: 24, memoryLimit: 12 },
  { ranks: 16, microbatches: 48, memoryLimit: 24 },
]) {
  const options = { ranks, microbatches, memoryLimit, costs: { retained: 1 } };
  const { span } = simulate(buildSchedule('AdaptiveV', options), options.costs);
  report(
    `AdaptiveV, p=${ranks}, m=${microbatches}, ${memoryLimit} chunks`,
    best(() => buildSchedule('AdaptiveV', options), 3),
    `${span - 6 * microbatches} bubble slots`,
  );
}
// Stages that differ by up to a fifth, as real ones do.
const uneven = (/** @type {number} */ base) =>
  Array.from({ length: 8 }, (_, s) => base * (0.8 + (0.4 * ((s * 37) % 11)) / 10));
const unevenCosts = { F: uneven(10), I: uneven(11), W: uneven(8), comm: 0.3 };
const seed = buildSchedule('ZB1P', { ranks: 8, microbatches: 24, costs: unevenCosts });
const improved = improveSchedule(seed, { costs: unevenCosts, memoryLimit: 8 });
report(
  'improveSchedule of ZB1P, p=8, m=24, uneven stages, 20,000 orders',
  best(() => improveSchedule(seed, { costs: unevenCosts, memoryLimit: 8 }), 3),
  `makespan ${improved.before.toFixed(1)} to ${improved.after.toFixed(1)}, no order below ${improved.bound.toFixed(1)}`,
);
const search = { ranks: 8, microbatches: 24, costs: unevenCosts, memoryLimit: 8 };
const found = searchSchedule(search);
report(
  'searchSchedule of the same step',
  best(() => searchSchedule(search), 3),
  `${found.schedule.name}, makespan ${found.after.toFixed(1)}`,
);
for (const { ranks, microbatches } of [
  { ranks: 3, microbatches: 4 },
  { ranks: 4, microbatches: 3 },
]) {
  const tiny = buildSchedule('ZB1P', { ranks, microbatches });
  const tinyCosts = {
    F: [3, 2, 4, 3].slice(0, ranks),
    I: [3, 4, 2, 3].slice(0, ranks),
    W: [2, 1, 3, 2].slice(0, ranks),
  };
  const optimum = optimalSchedule(tiny, { costs: tinyCosts, memoryLimit: ranks });
  report(
    `optimalSchedule, p=${ranks}, m=${microbatches}, uneven stages`,
    best(() => optimalSchedule(tiny, { costs: tinyCosts, memoryLimit: ranks }), 3),
    `${optimum.states.toLocaleString('en')} partial orders, makespan ${optimum.makespan}`,
  );
}
