// @ts-check
/** @file Prints how much memory a cross entropy and its backward take at most beside the scores, in sizes of the scores: `ours` or `libtorch`. */
import { readFileSync, writeFileSync } from 'node:fs';
import { callOp, nn, randint, randn } from '../dist/index.js';

const [rows, classes] = [4096, 4096];
/** @typedef {import('../dist/index.js').Tensor} Tensor */
/** @type {(scores: Tensor, target: Tensor) => Tensor} */
const loss =
  process.argv[2] === 'ours'
    ? (scores, target) => nn.functional.crossEntropy(scores, target)
    : (scores, target) => /** @type {Tensor} */ (callOp('aten::cross_entropy_loss', [scores, target]));

/** @param {string} what */
function memory(what) {
  return 1024 * Number(new RegExp(`${what}:\\s+(\\d+)`).exec(readFileSync('/proc/self/status', 'utf8'))?.[1]);
}

/** @param {number} height */
function run(height) {
  const scores = randn([height, classes]).requiresGrad_();
  const target = randint(classes, [height]);
  // The leaf's gradient is the result itself, so nothing else of that size is made.
  const before = memory('VmRSS');
  writeFileSync('/proc/self/clear_refs', '5'); // the highest memory use begins anew
  loss(scores, target).backward();
  return (memory('VmHWM') - before) / (4 * height * classes);
}

run(300); // sets libraries up
process.stdout.write(`result ${run(rows)}\n`);
