// @ts-check
// Dropout by name (nn.NamedRandom: Philox, drawn again in backward) beside libtorch's: nanoseconds of processor time for an
// element, forward alone and with backward.
//
// Run: node bench/engine/dropout.mjs
import { distributed, nn, randn, scope } from '@pipewright/torch';

const sizes = [
  [8, 64, 256],
  [16, 256, 768],
  [32, 512, 1024],
];
const random = new nn.NamedRandom({ seed: 1 });

/** Processor time of a function, in nanoseconds for each of so many elements. @param {() => unknown} body @param {number} elements */
function time(body, elements) {
  const rounds = Math.max(5, Math.min(200, Math.floor(1e7 / elements)));
  for (let i = 0; i < 3; i++) scope(() => void body());
  const begin = process.cpuUsage();
  for (let i = 0; i < rounds; i++) scope(() => void body());
  const { user, system } = process.cpuUsage(begin);
  return (((user + system) * 1e3) / rounds / elements).toFixed(2).padStart(6);
}

for (const threads of [1, 2]) {
  distributed.setNumThreads(threads);
  for (const size of sizes) {
    const x = randn(size, { requiresGrad: true });
    const gradient = randn(size);
    const layer = new nn.Dropout({ p: 0.1 });
    random.name(layer);
    const count = x.numel();
    const forward = () => layer.forward(x);
    const both = () => layer.forward(x).backward(gradient);
    const row = [
      `forward ${time(forward, count)} ns, by name ${time(() => random.run(forward), count)}`,
      `with backward ${time(both, count)} ns, by name ${time(() => random.run(both), count)}`,
    ];
    console.log(`${threads} threads, ${String(count).padStart(9)} elements: ${row.join('; ')}`);
  }
}
