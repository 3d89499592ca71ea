// Dropout by name (Philox, nn.NamedRandom) beside libtorch's: time of a forward and of a backward, per element.
// Run: node bench/dropout.mjs
import { distributed, nn, randn, scope } from '@pipewright/torch';

const sizes = [[8, 64, 256], [16, 256, 768], [32, 1024, 1024]];
const random = new nn.NamedRandom({ seed: 1 });

function time(body, rounds) {
  for (let i = 0; i < 3; i++) scope(body);
  const times = Array.from({ length: rounds }, () => {
    const begin = performance.now();
    scope(body);
    return performance.now() - begin;
  }).sort((a, b) => a - b);
  return times[Math.floor(rounds / 2)];
}

for (const threads of [1, 2]) {
  distributed.setNumThreads?.(threads);
  for (const size of sizes) {
    const x = randn(size, { requiresGrad: true });
    const layer = random.name(new nn.Dropout({ p: 0.1 })) && new nn.Dropout({ p: 0.1 });
    random.name(layer);
    const seed = randn(size);
    const step = () => layer.forward(x).backward(seed);
    const rounds = Math.max(5, Math.min(200, Math.floor(3e7 / x.numel())));
    const nanos = (ms) => ((ms * 1e6) / x.numel()).toFixed(2).padStart(6);
    const row = [
      time(() => void layer.forward(x), rounds),
      time(() => void random.run(() => layer.forward(x)), rounds),
      time(step, rounds),
      time(() => random.run(step), rounds),
    ].map(nanos);
    console.log(`${threads} threads, ${String(x.numel()).padStart(9)} elements: forward ${row[0]} ns libtorch, ${row[1]} ns by name; with backward ${row[2]} and ${row[3]}`);
  }
}
