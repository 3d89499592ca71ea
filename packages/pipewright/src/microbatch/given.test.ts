/** @file Steps on microbatches that are cut already, against plain training on each of them. */
import { randn, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { batch, expectClose, gradsOf, layers, make, mse, plainGrads, WIDTH } from '../../testing/layers.ts';

test.each(['Interleaved1F1B', 'InterleavedZeroBubble', 'GPipe'] as const)(
  'microbatches that are cut already may differ in every dimension, %s',
  (schedule) => {
    const modules = layers(schedule === 'GPipe' ? 1 : 2);
    const { runtime } = make(modules, schedule);
    const make3d = (rows: number, length: number): [Tensor, Tensor] => [
      randn([rows, length, WIDTH], { dtype: 'float64' }),
      randn([rows, length, WIDTH], { dtype: 'float64' }),
    ];
    const pairs = [make3d(2, 3), make3d(2, 7), make3d(1, 1), make3d(5, 2)];
    const given = { argMbs: pairs.map(([x]) => [x]), targetMbs: pairs.map(([, y]) => y) };
    const losses: Tensor[] = [];
    runtime.step({ ...given, losses, returnOutputs: false });
    const found = gradsOf(modules);
    for (const module of modules) module.zeroGrad();
    pairs.forEach(([x, y], m) => {
      const loss = mse(
        modules.reduce((h, module) => module.forward(h) as Tensor, x),
        y,
      );
      expect(losses[m]?.item()).toBeCloseTo(loss.item(), 12);
      loss.mul(x.size(0) / 10).backward();
    });
    expectClose(found, gradsOf(modules));
    expect(() => runtime.step(given)).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: step: mergeChunks: result has shapes [2, 3, 4], [2, 7, 4], [1, 1, 4], [5, 2, 4]; they must be equal but for dimension 0. Give a TensorChunkSpec of the dimension that differs, or a CustomReducer. Where they are not needed as one, say returnOutputs: false, or take each with onOutput. All else of the step is done: gradients are there]`,
    );
    expect(() => runtime.eval(given)).toThrow('say returnOutputs: false, or take each with onOutput');
    const shapes: unknown[] = [];
    runtime.eval({
      argMbs: given.argMbs,
      returnOutputs: false,
      onOutput: (part) => shapes.push(part.shape),
    });
    expect(shapes).toEqual(pairs.map(([x]) => x.shape));
  },
);

test('microbatches that are cut already are checked', () => {
  const { runtime, modules } = make(layers(2));
  const { x, y } = batch(8);
  const [argMbs, targetMbs] = [x.split(2).map((each) => [each]), y.split(2)];
  expect(() => runtime.step(x, { targetMbs })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: was given both a batch (positional inputs) and microbatches that are cut already; give all of one kind: argMbs, kwargMbs and targetMbs]`,
  );
  expect(() => runtime.step({ argMbs, target: y })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: was given both a batch (target) and microbatches that are cut already; give all of one kind: argMbs, kwargMbs and targetMbs]`,
  );
  expect(() => runtime.step({ argMbs: argMbs.slice(1), targetMbs })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: argMbs has 3 entries, but there are 4 microbatches; give one for each]`,
  );
  // @ts-expect-error: not lists of inputs
  expect(() => runtime.step({ argMbs: x.split(2), targetMbs })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: argMbs[0] is a Tensor; give an array of the positional inputs of that microbatch]`,
  );
  // @ts-expect-error: not objects
  expect(() => runtime.step({ argMbs, targetMbs, kwargMbs: [1, 2, 3, 4] })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: kwargMbs[0] is 1; give an object of the named inputs]`,
  );
  // @ts-expect-error: not a list
  expect(() => runtime.step({ argMbs: x, targetMbs })).toThrowErrorMatchingInlineSnapshot(
    `[PipelineError: step: argMbs is a Tensor; give an array with an entry for each microbatch]`,
  );
  expect(() => runtime.step({ argMbs })).toThrow('needs a target');
  expect(modules.map((module) => module.calls)).toEqual([0, 0]);
  runtime.step({ argMbs, targetMbs });
  expectClose(gradsOf(modules), plainGrads(modules, { x, y }));
});
