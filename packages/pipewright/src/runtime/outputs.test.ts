/** @file Outputs that cannot be merged: the error comes when all else of the step is done, on all ranks alike. */
import { nn, optim, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';
import { batch, gradsOf, layers, make } from '../../testing/layers.ts';

const program = new URL('../../testing/ranks/calls.mjs', import.meta.url);

/** Every second output is narrower. */
function ragged(fc: nn.Linear, calls: { count: number }): (x: Tensor) => Tensor {
  return (x) => (calls.count++ % 2 === 0 ? fc.forward(x) : fc.forward(x).narrow(1, 0, 2));
}

test('losses are filled and logged, the random step is counted, gradients are there', () => {
  const [first, last] = layers(2) as [ReturnType<typeof layers>[0], ReturnType<typeof layers>[0]];
  const calls = { count: 0 };
  last.forward = ragged(last.fc, calls) as never;
  const random = new nn.NamedRandom({ seed: 1 });
  let factor = 1;
  const lossFn = (output: Tensor): Tensor => output.square().mean().mul(factor);
  const { runtime, modules } = make([first, last], 'LoopedBFS', { lossFn, random });
  const { x } = batch(8);
  const losses: Tensor[] = [];
  runtime.step(x, { losses, returnOutputs: false });
  const [values, grads] = [losses.map((loss) => loss.item()), gradsOf(modules)];
  for (const module of modules) module.zeroGrad();
  expect(() => runtime.step(x, { losses })).toThrow(
    'they must be equal but for dimension 0. Give a TensorChunkSpec of the dimension that differs, or a CustomReducer. Where they are not needed as one, say returnOutputs: false, or take each with onOutput. All else of the step is done: gradients are there',
  );
  expect(losses.map((loss) => loss.item())).toEqual(values);
  expect(gradsOf(modules)).toEqual(grads);
  expect(random.step).toBe(2);
  expect(() => runtime.eval(x, { losses })).toThrow('eval: mergeChunks: result has shapes');
  expect([losses.length, random.step]).toEqual([4, 2]);

  factor = Number.NaN;
  expect(() => runtime.step(x, { losses })).toThrow('All else of the step is done');
  const optimizer = new optim.SGD(
    modules.flatMap((module) => module.parameters()),
    { lr: 0.1 },
  );
  expect(runtime.stepOptimizer(optimizer)).toMatchObject({ skipped: true, reason: 'a loss on rank 0 is not finite' });
});

test('all ranks count the step', async () => {
  const step = { method: 'step' };
  const ranks = await casesOnThreads<{ code: string | null; losses: number; randomStep: number }[]>(program, 2, [
    { calls: [[step, step]], ragged: true },
  ]);
  const seen = ranks.map(([results]) => results!.map(({ code, losses, randomStep }) => [code, losses, randomStep]));
  expect(seen).toEqual([
    [
      [null, 0, 1],
      [null, 0, 2],
    ],
    [
      ['SHAPES_DIFFER', 2, 1],
      ['SHAPES_DIFFER', 2, 2],
    ],
  ]);
});
