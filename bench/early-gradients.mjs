// @ts-check
/**
 * @file Gradients that leave in the middle of a backward against those that leave at its end: `node bench/early-gradients.mjs`.
 * 1F1B on two threads with one core each, 4 microbatches, so that the end of the step is much of it: at best the step takes 14/15.
 */
import { isMainThread } from 'node:worker_threads';
import { distributed } from '@pipewright/torch';

const RANKS = 2;
const ROUNDS = 6;
const rank = new URL('./pipeline-rank.mjs', import.meta.url);
const common = {
  schedule: '1F1B',
  device: 'cpu',
  dtype: 'float32',
  ranks: RANKS,
  stagesPerRank: 1,
  layers: 4,
  heads: 4,
};
const sizes = [
  { dim: 64, seq: 32, steps: 60 },
  { dim: 256, seq: 128, steps: 15 },
  { dim: 512, seq: 128, steps: 6 },
];

/** Times of steps. @param {typeof sizes[number]} size @param {boolean} earlyGradients @returns {Promise<number[]>} */
async function run(size, earlyGradients) {
  const setting = { ...common, ...size, vocab: 256, microbatchSize: 2, microbatches: 4, warmup: 3, earlyGradients };
  const [first] = await distributed.spawnThreads(RANKS, rank, setting, { threadsPerRank: 1 }).done;
  return /** @type {{ times: number[] }} */ (first).times;
}

/** @param {number[]} times @param {number} share */
function quantile(times, share) {
  return /** @type {number} */ (times.sort((a, b) => a - b)[Math.floor(times.length * share)]);
}

if (isMainThread) {
  console.log(`1F1B, ${RANKS} ranks, 4 microbatches; ms per step, quarter (median)\n`);
  console.log('| width x tokens of a microbatch | at the end | in the middle | ratio |');
  console.log('| --- | --: | --: | --: |');
  for (const size of sizes) {
    /** @type {[late: number[], early: number[]]} */
    const [late, early] = [[], []];
    for (let round = 0; round < ROUNDS; round++) {
      late.push(...(await run(size, false)));
      early.push(...(await run(size, true)));
    }
    const both = (/** @type {number[]} */ times) =>
      `${quantile(times, 0.25).toFixed(1)} (${quantile(times, 0.5).toFixed(1)})`;
    const ratio = (/** @type {number} */ share) => (quantile(early, share) / quantile(late, share)).toFixed(3);
    console.log(`| ${size.dim} x ${2 * size.seq} | ${both(late)} | ${both(early)} | ${ratio(0.25)} (${ratio(0.5)}) |`);
  }
}
