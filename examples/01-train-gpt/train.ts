/**
 * @file Trains a small GPT on the fables in ../data, character by character, in one process; then writes a fable of its own.
 *
 * Run: node examples/dist/01-train-gpt/train.js                (about a minute on two cores)
 *      node examples/dist/01-train-gpt/train.js --steps 500 --width 192
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  inferenceMode,
  liveTensors,
  manualSeed,
  nn,
  optim,
  randint,
  scope,
  softmax,
  stack,
  type Tensor,
  tensor,
} from '@pipewright/torch';
import { Gpt } from './gpt.ts';

const numbers = {
  steps: { type: 'string', default: '300' },
  layers: { type: 'string', default: '4' },
  heads: { type: 'string', default: '4' },
  width: { type: 'string', default: '128' },
  context: { type: 'string', default: '64' },
  batch: { type: 'string', default: '16' },
  lr: { type: 'string', default: '2e-3' },
  seed: { type: 'string', default: '1' },
  sample: { type: 'string', default: '400' },
} as const;
const { values } = parseArgs({
  options: {
    ...numbers,
    device: { type: 'string', default: 'cpu' },
    help: { type: 'boolean', short: 'h', default: false },
  },
});
if (values.help) {
  const lines = Object.entries(numbers).map(([name, option]) => `  --${name.padEnd(8)} ${option.default}`);
  console.log(`node train.js [options]\n\n${lines.join('\n')}\n  --device   cpu or cuda`);
  process.exit(0);
}
const option = (name: keyof typeof numbers): number => {
  const value = Number(values[name]);
  if (!(value > 0)) throw new Error(`--${name} must be a number above 0, got ${values[name]}`);
  return value;
};
const { device } = values;
const [steps, context, batch] = [option('steps'), option('context'), option('batch')];

// The text as numbers: one per character.
const text = readFileSync(findText(), 'utf8');
const characters = [...new Set(text)].sort();
const data = tensor(
  Int32Array.from(text, (character) => characters.indexOf(character)),
  { dtype: 'int64', device },
);

manualSeed(option('seed'));
const model = new Gpt({
  vocabulary: characters.length,
  context,
  layers: option('layers'),
  heads: option('heads'),
  width: option('width'),
  dropout: 0.1,
}).to({ device });
const decay = model.parameters().filter((parameter) => parameter.dim() > 1);
const rest = model.parameters().filter((parameter) => parameter.dim() <= 1);
const optimizer = new optim.AdamW(
  [
    { params: decay, weightDecay: 0.1 },
    { params: rest, weightDecay: 0 },
  ],
  { lr: option('lr'), betas: [0.9, 0.99] },
);
const warmup = Math.min(20, steps);
const schedule = new optim.LambdaLR(optimizer, (step) =>
  step < warmup
    ? (step + 1) / warmup
    : 0.1 + 0.45 * (1 + Math.cos((Math.PI * (step - warmup)) / Math.max(1, steps - warmup))),
);
const size = model.parameters().reduce((sum, parameter) => sum + parameter.numel(), 0);
console.log(
  `${(size / 1e6).toFixed(2)} million parameters, ${text.length} characters of ${characters.length} kinds, ${steps} steps on ${device}`,
);

const started = performance.now();
let smooth = 0;
for (let step = 1; step <= steps; step++) {
  // Everything made inside is freed at the end of the scope; the number that comes out is not a tensor.
  const loss = scope(() => {
    const [inputs, targets] = nextBatch();
    // A scope of its own: what backward does not need is free before backward begins.
    const value = scope(() => nn.functional.crossEntropy(model.forward(inputs).flatten(0, 1), targets.flatten()));
    optimizer.zeroGrad();
    value.backward();
    nn.utils.clipGradNorm_(model.parameters(), 1);
    optimizer.step();
    schedule.step();
    return value.item();
  });
  smooth = step === 1 ? loss : 0.9 * smooth + 0.1 * loss;
  report(step, loss);
}

model.eval();
console.log(`\nA sample:\n\n${write('The ', option('sample'))}\n`);
console.log(
  `loss ${smooth.toFixed(3)} after ${steps} steps, ${((performance.now() - started) / 1000).toFixed(1)} s, ${liveTensors()} tensors alive`,
);

/** Random pieces of the text, and the same moved on by one character. */
function nextBatch(): [Tensor, Tensor] {
  const random = randint(0, data.numel() - context - 1, [batch]);
  const starts = Array.from({ length: batch }, (_, row) => random.at(row).item());
  const cut = (offset: number): Tensor =>
    stack(starts.map((start) => data.slice([start + offset, start + offset + context])));
  return [cut(0), cut(1)];
}

/** Writes on from `prompt`, one character at a time. */
function write(prompt: string, length: number): string {
  const ids = [...prompt].map((character) => characters.indexOf(character));
  while (ids.length < length) {
    const next = inferenceMode(() =>
      scope(() => {
        const window = tensor([ids.slice(-context)], { device });
        const logits = model.forward(window).at(0, -1).div(0.8);
        return softmax(logits, -1).multinomial(1).item();
      }),
    );
    ids.push(next);
  }
  return ids.map((id) => characters[id]).join('');
}

function report(step: number, loss: number): void {
  const elapsed = (performance.now() - started) / 1000;
  const rate = (step * batch * context) / elapsed;
  const left = (elapsed / step) * (steps - step);
  const line = `step ${String(step).padStart(4)}/${steps}  loss ${loss.toFixed(3)}  ${Math.round(rate).toLocaleString('en')} characters/s  ${left.toFixed(0)} s left`;
  if (process.stdout.isTTY) process.stdout.write(`\r${line.padEnd(70)}`);
  else if (step === 1 || step === steps || step % 50 === 0) console.log(line);
}

/** The text is next to the sources; this file may run from dist. */
function findText(): string {
  const path = join(import.meta.dirname, '../data/fables.txt');
  return existsSync(path) ? path : join(import.meta.dirname, '../../data/fables.txt');
}
