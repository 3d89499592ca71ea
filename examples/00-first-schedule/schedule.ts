/**
 * @file A schedule as data: build one, simulate it, change it by hand, and check the change against the rules. No libtorch needed.
 * Run: node examples/dist/00-first-schedule/schedule.js
 */
import { buildSchedule, lower, renderTimeline, Schedule, simulate, validate } from '@pipewright/schedule';

const ranks = 4;
const microbatches = 8;
const costs = { F: 1, I: 1, W: 1, comm: 0.1 };

// 1. Build a schedule and draw it to scale.
const oneFOneB = buildSchedule('1F1B', { ranks, microbatches });
console.log(renderTimeline(simulate(oneFOneB, costs)));

// 2. Which schedule idles least with these costs? V schedules cut the model twice as fine, so a stage costs half.
const half = { ...costs, F: 0.5, I: 0.5, W: 0.5, activation: 0.5 };
const candidates = {
  GPipe: simulate(buildSchedule('GPipe', { ranks, microbatches }), costs),
  '1F1B': simulate(oneFOneB, costs),
  ZBV: simulate(buildSchedule('ZBV', { ranks, microbatches }), half),
};
for (const [name, { makespan, bubble, peakMemory }] of Object.entries(candidates)) {
  const idle = (100 * bubble.makespan).toFixed(1);
  console.log(
    `${name.padEnd(5)} makespan ${makespan.toFixed(1)}, idle ${idle}%, peak memory ${Math.max(...peakMemory)}`,
  );
}

// 3. A schedule is plain data: swap two actions of rank 1 and ask whether the result can still run.
const order = oneFOneB.order.map((row) => row.filter((action) => action !== null));
const swapped = Schedule.from({
  name: 'swapped',
  order: order.map((row, rank) =>
    rank === 1 ? [...row.slice(3, 4), ...row.slice(1, 3), ...row.slice(0, 1), ...row.slice(4)] : row,
  ),
});
for (const { rule, explanation } of validate(swapped)) console.log(`${rule}: ${explanation}`);

// 4. What ranks execute: the same order with sends and receives, each receive as late as is safe.
console.log(`rank 1 runs: ${lower(oneFOneB, { unshardWindow: false }).toString().split('\n')[1]}`);
