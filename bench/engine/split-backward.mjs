// @ts-check
/**
 * @file What splitting a backward costs: input half plus weight half against one plain backward of 4 linear layers, in
 * turns, forward not counted. `node bench/engine/split-backward.mjs [--device cuda] [--rounds 1]`. Prints a table for RESULTS.md.
 */
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: { device: { type: 'string', default: 'cpu' }, rounds: { type: 'string', default: '1' } },
});
process.env['OMP_NUM_THREADS'] = '1'; // before libtorch loads
const { backward, cuda, inputBackward, linear, randn, scope } = await import('@pipewright/torch');
const { device } = flags;

const cases = [
  { width: 64, batch: 8, activation: 'relu', block: 50, repeats: 100 },
  { width: 64, batch: 8, activation: 'tanh', block: 50, repeats: 100 },
  { width: 256, batch: 64, activation: 'relu', block: 4, repeats: 100 },
  { width: 1024, batch: 256, activation: 'relu', block: 1, repeats: 40 },
];

/** @param {readonly number[]} values */
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

/** Microseconds: the process's CPU time, so that a busy machine changes little; on a GPU the wall time until it is done. @param {() => void} body */
function time(body) {
  if (device !== 'cpu') {
    cuda.synchronize();
    const start = process.hrtime.bigint();
    body();
    cuda.synchronize();
    return Number(process.hrtime.bigint() - start) / 1000;
  }
  const before = process.cpuUsage();
  body();
  const { user, system } = process.cpuUsage(before);
  return user + system;
}

/** @param {(typeof cases)[number]} shape */
function measure({ width, batch, activation, block, repeats }) {
  const layers = Array.from({ length: 4 }, () => ({
    weight: randn(width, width, { device }).mul(0.05).requiresGrad_(),
    bias: randn(width, { device }).mul(0.05).requiresGrad_(),
  }));
  const x = randn(batch, width, { device }).requiresGrad_();
  const dy = randn(batch, width, { device });
  const forward = () =>
    layers.reduce(
      (y, { weight, bias }) =>
        activation === 'relu' ? linear(y, weight, bias).relu() : linear(y, weight, bias).tanh(),
      x,
    );
  const forwards = () => Array.from({ length: block }, () => scope(forward));
  /** @type {{ plain: number[], input: number[], weight: number[] }} */
  const times = { plain: [], input: [], weight: [] };
  const total = repeats * Number(flags.rounds);
  const warm = Math.ceil(total / 10);
  for (let i = 0; i < total + warm; i++) {
    const plain = scope(() => {
      const outputs = forwards();
      const taken = time(() => {
        for (const y of outputs) backward([y], { gradTensors: [dy] });
      });
      x.grad = null;
      return taken;
    });
    const [input, weight] = scope(() => {
      const outputs = forwards();
      /** @type {import('@pipewright/torch').WeightBackward[]} */
      const halves = [];
      const first = time(() => {
        for (const y of outputs) halves.push(inputBackward({ outputs: [y], gradOutputs: [dy], inputs: [x] }).weights);
      });
      const second = time(() => {
        for (const half of halves) half.run();
      });
      return [first, second];
    });
    if (i < warm) continue;
    times.plain.push(plain / block);
    times.input.push((input ?? 0) / block);
    times.weight.push((weight ?? 0) / block);
  }
  for (const { weight, bias } of layers) for (const each of [weight, bias]) each.dispose();
  for (const each of [x, dy]) each.dispose();
  return {
    plain: median(times.plain),
    input: median(times.input),
    both: median(times.input.map((each, i) => each + (times.weight[i] ?? 0))),
  };
}

console.log('| 4 layers | B, us | I, us | W, us | (I+W)/B |\n| --- | --: | --: | --: | --: |');
for (const shape of cases) {
  const { plain, input, both } = measure(shape);
  const row = [
    `width ${shape.width}, batch ${shape.batch}, ${shape.activation}`,
    plain.toFixed(1),
    input.toFixed(1),
    (both - input).toFixed(1),
    (both / plain).toFixed(3),
  ];
  console.log(`| ${row.join(' | ')} |`);
}
