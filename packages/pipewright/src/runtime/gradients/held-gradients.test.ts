/** @file A step that fails in the middle, on one rank: the next one does not start from what it has left. */
import { liveTensors, scope, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { batch, expectClose, gradsOf, layers, type Made, make, mse, plainGrads } from '../../../testing/layers.ts';

/** Two stages with a loss that fails in the call with this number. */
function makeFailing(
  stageOptions: () => object,
): Made<readonly Tensor[], Tensor, Tensor> & { failAt(call: number): void } {
  let [calls, at] = [0, 0];
  const lossFn = (output: Tensor, target: Tensor): Tensor => {
    if (++calls === at) throw new Error('out of luck');
    return mse(output, target);
  };
  const made = make<Tensor, Tensor>(layers(2), 'Interleaved1F1B', { lossFn }, stageOptions);
  return { ...made, failAt: (call) => void ([calls, at] = [0, call]) };
}

test('gradients that it has begun are gone, and nothing is held', () => {
  const { runtime, modules, failAt } = makeFailing(() => ({}));
  const data = batch(8);
  const expected = plainGrads(modules, data);
  const fail = (): void => scope(() => expect(() => runtime.step(data.x, { target: data.y })).toThrow('out of luck'));
  failAt(4);
  fail();
  const live = liveTensors();
  failAt(4);
  fail();
  expect(liveTensors()).toBe(live);
  expect(gradsOf(modules)).toEqual([null, null, null, null]);
  runtime.step(data.x, { target: data.y });
  expectClose(gradsOf(modules), expected);
});

test('what fails before or beside a step leaves all gradients alone', () => {
  const { runtime, modules, failAt } = makeFailing(() => ({}));
  const data = batch(8);
  runtime.step(data.x, { target: data.y });
  const before = gradsOf(modules);
  failAt(2);
  expect(() => runtime.eval(data.x, { target: data.y })).toThrow('out of luck');
  expect(gradsOf(modules)).toEqual(before);
  const remove = runtime.addHook({
    beforeStep: () => {
      throw new Error('not now');
    },
  });
  expect(() => runtime.step(data.x, { target: data.y })).toThrow('not now');
  remove();
  expect(gradsOf(modules)).toEqual(before);
});

test('tied parameters have what earlier steps have accumulated, and nothing of it', () => {
  const { runtime, modules, failAt } = makeFailing(() => ({ ties: { 'fc.weight': 'w' } }));
  const data = batch(8);
  runtime.step(data.x, { target: data.y });
  const before = gradsOf(modules);
  failAt(4);
  expect(() => runtime.step(data.x, { target: data.y })).toThrow('out of luck');
  const after = gradsOf(modules);
  for (const i of [0, 2]) expect(after[i]).toEqual(before[i]);
});
