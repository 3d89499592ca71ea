/**
 * @file The model of this example for the planner: npx pipewright plan examples/dist/02-train-gpt-pipeline/model.js --ranks 2 --batch 16
 * Then: npm start -- --plan plan.json
 */
import { nn, stack, type Tensor } from '@pipewright/torch';
import { Gpt } from '../01-train-gpt/gpt.ts';
import { Fables } from './fables.ts';
import { parseOptions } from './options.ts';

const { layers, heads, width, context } = parseOptions(['--size', process.env['GPT_SIZE'] ?? 'small']);
const fables = new Fables(context);

/** The whole model. */
export function model(): nn.Module {
  return new Gpt({ vocabulary: fables.characters.length, context, layers, heads, width, dropout: 0.1 });
}

/** An example of so many rows. */
export function batch(rows: number): { args: Tensor[]; target: Tensor } {
  const examples = Array.from({ length: rows }, (_, i) => fables.getItem(i * context));
  return { args: [stack(examples.map(([inputs]) => inputs))], target: stack(examples.map(([, targets]) => targets)) };
}

/** The loss of a microbatch. */
export function lossFn(logits: Tensor, targets: Tensor): Tensor {
  return nn.functional.crossEntropy(logits.flatten(0, 1), targets.flatten());
}
