/**
 * @file How good `improveSchedule` is: against the proven optimum of small steps, and against ZB1P on uneven stages.
 * Run: npm run build && node bench/schedule/search-quality.mjs
 */
import { buildSchedule, improveSchedule, optimalSchedule } from '@pipewright/schedule';

/** Repeatable numbers from 0 to 1. @param {number} seed */
function numbers(seed) {
  let state = seed;
  const next = () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  };
  for (let i = 0; i < 5; i++) next();
  return next;
}

let reached = 0;
const steps = 600;
for (let seed = 1; seed <= steps; seed++) {
  const next = numbers(seed * 7919);
  const ranks = 1 + Math.floor(next() * 3);
  const microbatches = 1 + Math.floor(next() * 4);
  const perStage = () => Array.from({ length: ranks }, () => 1 + Math.floor(next() * 6));
  const costs = { F: perStage(), I: perStage(), W: perStage(), comm: [0, 0.5, 2][Math.floor(next() * 3)] ?? 0 };
  const memoryLimit = Array.from({ length: ranks }, () => 1 + Math.floor(next() * 2 * ranks));
  const start = buildSchedule('ZB1P', { ranks, microbatches, costs, memoryLimit });
  const { makespan } = optimalSchedule(start, { costs, memoryLimit });
  const { after } = improveSchedule(start, { costs, memoryLimit, evaluations: 8000 });
  if (after < makespan - 1e-9) throw new Error(`step ${seed}: ${after} is below the optimum ${makespan}`);
  if (after <= makespan + 1e-9) reached++;
}
console.log(`small steps: ${reached} of ${steps} reach the proven optimum`);

console.log('8 ranks, 24 microbatches, stages that differ by up to a fifth:');
for (const memoryLimit of [8, 16]) {
  const gains = [];
  let proven = 0;
  for (let seed = 1; seed <= 10; seed++) {
    const next = numbers(seed * 977);
    const around = (/** @type {number} */ base) => Array.from({ length: 8 }, () => base * (0.8 + 0.4 * next()));
    const costs = { F: around(10), I: around(11), W: around(8), comm: 0.3 };
    const start = buildSchedule('ZB1P', { ranks: 8, microbatches: 24, costs, memoryLimit });
    const { before, after, bound } = improveSchedule(start, { costs, memoryLimit });
    gains.push(100 * (before / after - 1));
    if (after <= bound * (1 + 1e-9)) proven++;
  }
  const mean = gains.reduce((sum, gain) => sum + gain, 0) / gains.length;
  console.log(
    `  limit ${memoryLimit}: ${mean.toFixed(1)}% gained over ZB1P on average, ${Math.max(...gains).toFixed(1)}% at most; ${proven} of 10 meet the lower bound`,
  );
}
