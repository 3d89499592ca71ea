// @ts-check
/**
 * @file A cross entropy and its backward over a large vocabulary, `nn.functional.crossEntropy` against libtorch's own operator, in turns:
 * `node bench/engine/cross-entropy.mjs [--device cuda] [--rounds 20] [--threads 1]`. Prints a table for RESULTS.md.
 */
import { parseArgs } from 'node:util';
import { median } from '../turns.mjs';

const { values: flags } = parseArgs({
  options: {
    device: { type: 'string', default: 'cpu' },
    rounds: { type: 'string', default: '20' },
    threads: { type: 'string', default: '1' },
  },
});
process.env['OMP_NUM_THREADS'] = flags.threads; // before libtorch loads
const { callOp, cuda, nn, randint, randn, scope } = await import('@pipewright/torch');
const device = /** @type {any} */ (flags.device);

/** @typedef {import('@pipewright/torch').Tensor} Tensor */
/** @type {Record<string, (scores: Tensor, target: Tensor) => Tensor>} */
const losses = {
  ours: (scores, target) => nn.functional.crossEntropy(scores, target),
  libtorch: (scores, target) => /** @type {Tensor} */ (callOp('aten::cross_entropy_loss', [scores, target])),
};
const cases = [
  { rows: 256, classes: 1000, dtype: 'float32' },
  { rows: 512, classes: 32000, dtype: 'float32' },
  { rows: 1024, classes: 50257, dtype: 'float32' },
  { rows: 4096, classes: 32000, dtype: 'bfloat16' },
];

console.log(`| rows x classes | type | here, ms | libtorch, ms | ratio |
| --- | --- | --: | --: | --: |`);
for (const { rows, classes, dtype } of cases) {
  const made = randn([rows, classes], { device });
  const scores = made.to({ dtype: /** @type {any} */ (dtype) }).requiresGrad_();
  made.dispose();
  const target = randint(classes, [rows], { device });
  /** @type {Record<string, number[]>} */
  const times = { ours: [], libtorch: [] };
  for (let round = -2; round < Number(flags.rounds); round++)
    for (const [name, loss] of Object.entries(losses)) {
      if (device === 'cuda') cuda.synchronize();
      const start = performance.now();
      scope(() => loss(scores, target).backward());
      if (device === 'cuda') cuda.synchronize();
      if (round >= 0) times[name]?.push(performance.now() - start);
      scores.grad = null;
    }
  const [ours, libtorch] = [median(times['ours'] ?? []), median(times['libtorch'] ?? [])];
  console.log(
    `| ${rows} x ${classes} | ${dtype} | ${ours.toFixed(2)} | ${libtorch.toFixed(2)} | ${(ours / libtorch).toFixed(2)} |`,
  );
  scores.dispose();
  target.dispose();
}
