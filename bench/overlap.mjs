// @ts-check
/**
 * @file Overlapped actions on the CPU, side by side and one after the other: `node bench/overlap.mjs`. DualPipeV on one rank
 * with two stages of two transformer blocks, 16 microbatches, two cores; the least of the steps, both ways in turns.
 */
import { distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { Block } from './gpt-block.mjs';

const MICROBATCHES = 16;
const CORES = 2;
const ROUNDS = 3;
const sizes = [
  { width: 64, length: 32, rows: 1, steps: 10 },
  { width: 128, length: 64, rows: 2, steps: 10 },
  { width: 256, length: 64, rows: 2, steps: 5 },
  { width: 512, length: 128, rows: 2, steps: 2 },
];

/** Milliseconds of the fastest step. @param {typeof sizes[number]} size @param {boolean} beside */
function time({ width, length, rows, steps }, beside) {
  const stages = [0, 1].map(
    (i) => new PipelineStage(new nn.Sequential(new Block(width, 8), new Block(width, 8)), i, 2),
  );
  const lossFn = (/** @type {import('@pipewright/torch').Tensor} */ y) => y.square().mean();
  const runtime = new PipelineRuntime(stages, 'DualPipeV', { microbatches: MICROBATCHES, lossFn });
  // A function of one's own for backwards makes the parts run one after the other.
  if (!beside) runtime.registerCustomFunction('B', (_action, context) => context.run());
  const x = randn([MICROBATCHES * rows, length, width]);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < steps + 2; i++) {
    const start = performance.now();
    scope(() => runtime.step(x, { returnOutputs: false }));
    if (i >= 2) best = Math.min(best, performance.now() - start);
  }
  x.dispose();
  runtime.dispose();
  for (const stage of stages) stage.module.dispose();
  return best;
}

distributed.setNumThreads(CORES);
console.log(`DualPipeV, one rank, ${CORES} cores, ${MICROBATCHES} microbatches; ms per step\n`);
console.log('| width x tokens of a microbatch | one after the other | side by side | ratio |');
console.log('| --- | --: | --: | --: |');
for (const size of sizes) {
  let [after, beside] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (let round = 0; round < ROUNDS; round++) {
    after = Math.min(after, time(size, false));
    beside = Math.min(beside, time(size, true));
  }
  const { width, length, rows } = size;
  const cells = [`${width} x ${length * rows}`, after.toFixed(1), beside.toFixed(1), (beside / after).toFixed(2)];
  console.log(`| ${cells.join(' | ')} |`);
}
