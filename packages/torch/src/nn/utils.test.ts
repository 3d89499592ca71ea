/** @file Clipping of gradients as PyTorch does it, parameters as a vector, and packed sequences. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { float64, liveTensors, manualSeed, nn, ones, randn, scope, Tensor, tensor, zeros } from '../index.ts';
import { markShard } from '../internal.ts';

interface Clip {
  readonly maxNorm: number;
  readonly normType: string;
  readonly before: readonly (readonly number[])[];
  readonly norm: number;
  readonly after: readonly (readonly number[])[];
}

const clips = JSON.parse(readFileSync(new URL('../../../../testdata/nn/clip.json', import.meta.url), 'utf8')) as Clip[];

function withGradients(values: readonly (readonly number[])[]): Tensor[] {
  return values.map((grads) => {
    const parameter = zeros([grads.length], { dtype: float64 }).requiresGrad_();
    parameter.grad = tensor([...grads], { dtype: float64 });
    return parameter;
  });
}

describe('gradients', () => {
  test.each(clips)('are clipped to the norm $maxNorm of order $normType', (item) => {
    const parameters = withGradients(item.before);
    const normType = item.normType === 'inf' ? Infinity : Number(item.normType);
    const live = liveTensors();
    const norm = nn.utils.clipGradNorm_(parameters, item.maxNorm, { normType });
    expect(liveTensors()).toBe(live + 1);
    expect(norm.item()).toBeCloseTo(item.norm, 12);
    parameters.forEach((parameter, p) => {
      (parameter.grad!.toArray() as number[]).forEach((value, i) =>
        expect(value).toBeCloseTo(item.after[p]?.[i] as number, 12),
      );
    });
  });

  test('of several types are clipped together', () => {
    const a = ones([2]).requiresGrad_();
    const b = ones([2], { dtype: float64 }).requiresGrad_();
    a.grad = tensor([3, 0], { dtype: 'float32' });
    b.grad = tensor([4, 0], { dtype: float64 });
    expect(nn.utils.clipGradNorm_([a, b, ones([1])], 1).item()).toBeCloseTo(5, 6);
    expect(b.grad?.at(0).item()).toBeCloseTo(0.8, 6);
  });

  test('that are not finite are an error if asked for; none at all are no error', () => {
    const parameter = ones([1]).requiresGrad_();
    expect(nn.utils.clipGradNorm_(parameter, 1).item()).toBe(0);
    parameter.grad = tensor([NaN]);
    expect(() => nn.utils.clipGradNorm_(parameter, 1, { errorIfNonfinite: true })).toThrow(
      /the norm of the gradients is NaN/,
    );
  });

  test('of shards are not clipped by a norm, which is not that of the whole', () => {
    const [whole, shard] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    [whole.grad, shard.grad] = [ones([2]), ones([2])];
    markShard(shard);
    expect(() => nn.utils.clipGradNorm_([whole, shard], 1)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: clipGradNorm_: tensor 1 of 2 is this rank's part of a sharded parameter, so its norm is not that of the whole; call runtime.clipGradNorm_ instead]`,
    );
    expect(() => nn.utils.getTotalNorm(shard)).toThrow(
      expect.objectContaining({
        code: 'BAD_ARGUMENT',
        message: expect.stringMatching(/^getTotalNorm: tensor 0 of 1/) as string,
      }),
    );
    expect(whole.grad?.toArray()).toEqual([1, 1]);
    nn.utils.clipGradValue_([whole, shard], 0.5);
    expect([whole, shard].map((one) => one.grad?.toArray())).toEqual([
      [0.5, 0.5],
      [0.5, 0.5],
    ]);
    expect(nn.utils.clipGradNorm_(whole, 1).item()).toBeCloseTo(Math.SQRT1_2, 6);
  });

  test('are clipped by value', () => {
    const parameter = ones([3]).requiresGrad_();
    parameter.grad = tensor([-3, 0.25, 3]);
    nn.utils.clipGradValue_([parameter], 0.5);
    expect(parameter.grad?.toArray()).toEqual([-0.5, 0.25, 0.5]);
  });
});

test('parameters become a vector and back', () => {
  const model = new nn.Linear(2, 1);
  const vector = nn.utils.parametersToVector(model.parameters());
  expect([vector.shape, vector.requiresGrad]).toEqual([[3], true]);
  nn.utils.vectorToParameters(tensor([1, 2, 3], { dtype: 'float32' }), model.parameters());
  expect([model.weight.toArray(), model.bias?.toArray()]).toEqual([[[1, 2]], [3]]);
  expect(() => nn.utils.vectorToParameters(ones([4]), model.parameters())).toThrow(/3 elements, the vector 4/);
});

describe('packed sequences', () => {
  test('come back as they were, in any order', () => {
    const x = randn([4, 3, 2]);
    const packed = nn.utils.packPaddedSequence(x, [2, 4, 1], { enforceSorted: false });
    expect([packed.data.shape, packed.batchSizes.toArray(), packed.numSequences]).toEqual([[7, 2], [3, 2, 1, 1], 3]);
    const [padded, lengths] = nn.utils.padPackedSequence(packed, { paddingValue: -1 });
    expect(lengths.toArray()).toEqual([2, 4, 1]);
    expect(padded.at(':', 1).equal(x.at(':', 1))).toBe(true);
    expect(padded.at(1, 2).toArray()).toEqual([-1, -1]);
  });

  test('give a recurrent layer the same result as one sequence at a time', () => {
    manualSeed(1);
    for (const layer of [
      new nn.LSTM(2, 3, { bidirectional: true }),
      new nn.GRU(2, 3),
      new nn.RNN(2, 3, { nonlinearity: 'relu' }),
    ]) {
      scope(() => {
        const x = randn([4, 2, 2]);
        const forward = layer.forward.bind(layer) as (input: unknown) => [unknown, Tensor | [Tensor, Tensor]];
        const [output, state] = forward(nn.utils.packPaddedSequence(x, [2, 4], { enforceSorted: false }));
        const [padded] = nn.utils.padPackedSequence(output as nn.utils.PackedSequence);
        const [alone, stateAlone] = forward(x.at(':2', '0:1'));
        expect(padded.at(':2', '0:1').allclose(alone as Tensor)).toBe(true);
        const last = (given: Tensor | [Tensor, Tensor]): Tensor => (given instanceof Tensor ? given : given[0]);
        expect(last(state).at(':', '0:1').allclose(last(stateAlone))).toBe(true);
      });
    }
  });
});

test('the norm of gradients of several types is that of the widest, whichever comes first', () => {
  const make = (dtype: 'float16' | 'float32' | 'bfloat16', value: number): nn.Parameter => {
    const parameter = new nn.Parameter(zeros([1], { dtype }));
    parameter.grad = tensor([value], { dtype });
    return parameter;
  };
  for (const first of ['float16', 'bfloat16'] as const)
    for (const turn of [false, true]) {
      const parameters = [make(first, 1), make('float32', 70000)];
      const norm = nn.utils.clipGradNorm_(turn ? parameters.toReversed() : parameters, 1);
      expect(norm.dtype.name).toBe('float32');
      expect(norm.item()).toBe(70000);
      expect(parameters[0]!.grad!.item()).toBeCloseTo(1 / 70000, 7);
      expect(parameters[1]!.grad!.item()).toBeCloseTo(1, 6);
    }
});
