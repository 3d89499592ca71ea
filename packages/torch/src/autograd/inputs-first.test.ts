/** @file Backwards that give chosen gradients first: the same gradients, in two breaths. */
import { fc, test as property } from '@fast-check/vitest';
import { describe, expect, test } from 'vitest';
import { leakFree } from '../../testing/gradients.ts';
import {
  backward,
  backwardInputsFirst,
  checkpoint,
  float64,
  linear,
  manualSeed,
  nn,
  randn,
  scope,
  type Tensor,
} from '../index.ts';

interface Net {
  readonly weights: readonly Tensor[];
  readonly biases: readonly Tensor[];
  readonly input: Tensor;
}

function makeNet(layers: number): Net {
  manualSeed(7);
  const one = (shape: number[]): Tensor => randn(shape, { dtype: float64 }).requiresGrad_();
  return {
    weights: Array.from({ length: layers }, () => one([6, 6])),
    biases: Array.from({ length: layers }, () => one([6])),
    input: one([3, 4, 6]),
  };
}

/** A few layers with a way round each of them; the first weight is used once more at the end. */
function run({ weights, biases, input }: Net): Tensor {
  let x = input;
  weights.forEach((weight, i) => {
    x = linear(x, weight, biases[i] as Tensor)
      .tanh()
      .add(x);
  });
  return linear(x, weights[0] as Tensor).sum();
}

const leavesOf = ({ weights, biases, input }: Net): Tensor[] => [input, ...weights, ...biases];

/** Sums of the same parts, perhaps in another order. */
function expectSameGrads(got: readonly Tensor[], expected: readonly Tensor[]): void {
  expect(got.length).toBe(expected.length);
  got.forEach(({ grad }, i) => {
    const difference = grad
      ?.sub((expected[i] as Tensor).grad!)
      .abs()
      .max()
      .item();
    expect(difference, `leaf ${i}`).toBeLessThan(1e-12);
  });
}

describe('backwardInputsFirst', () => {
  property.prop([fc.integer({ min: 1, max: 5 }), fc.integer({ min: 1, max: 3 })], { numRuns: 20 })(
    'gives what backward gives, over several steps',
    (layers, steps) =>
      leakFree(() => {
        const [plain, first] = [makeNet(layers), makeNet(layers)];
        for (let step = 0; step < steps; step++) {
          backward(run(plain));
          backwardInputsFirst(run(first), { inputs: [first.input], ready: () => undefined });
        }
        expectSameGrads(leavesOf(first), leavesOf(plain));
      }),
  );

  test('the gradients of the inputs are complete when ready is called, those of the weights are not', () =>
    leakFree(() => {
      const [plain, first] = [makeNet(3), makeNet(3)];
      backward(run(plain));
      let seen: unknown;
      let missing = 0;
      backwardInputsFirst(run(first), {
        inputs: [first.input],
        ready: () => {
          seen = first.input.grad?.toArray();
          missing = first.weights.filter(({ grad }) => grad === null).length;
        },
      });
      expect(seen).toEqual(plain.input.grad?.toArray());
      expect(missing).toBe(3);
    }));

  test('a weight that is wanted first does not wait', () =>
    leakFree(() => {
      const [plain, first] = [makeNet(2), makeNet(2)];
      backward(run(plain));
      const wanted = [first.input, first.weights[1] as Tensor, first.biases[0] as Tensor];
      let seen: unknown[] = [];
      backwardInputsFirst(run(first), {
        inputs: wanted,
        ready: () => {
          seen = wanted.map(({ grad }) => grad?.toArray() ?? null);
        },
      });
      expect(seen).toEqual([plain.input, plain.weights[1], plain.biases[0]].map((leaf) => leaf?.grad?.toArray()));
      expectSameGrads(leavesOf(first), leavesOf(plain));
    }));

  test('hooks of weights see their gradients, and checkpoints are computed again', () =>
    leakFree(() => {
      const [plain, first] = [makeNet(2), makeNet(2)];
      const seen: unknown[][] = [[], []];
      const handles = [plain, first].map((net, i) =>
        net.weights[1]?.registerHook((gradient) => {
          seen[i]?.push(gradient.toArray());
          return gradient.mul(2);
        }),
      );
      backward(checkpoint(() => run(plain), []) as Tensor);
      backwardInputsFirst(checkpoint(() => run(first), []) as Tensor, {
        inputs: [first.input],
        ready: () => undefined,
      });
      expect(seen[1]).toEqual(seen[0]);
      expectSameGrads(leavesOf(first), leavesOf(plain));
      for (const handle of handles) handle?.remove();
    }));

  test('an error in ready comes out, and what was put off is dropped', () =>
    leakFree(() => {
      const net = makeNet(2);
      const fail = (): void => {
        throw new Error('no way to send');
      };
      expect(() => backwardInputsFirst(run(net), { inputs: [net.input], ready: fail })).toThrow('no way to send');
      expect(net.input.grad).not.toBeNull();
      expect(net.weights.map(({ grad }) => grad)).toEqual([null, null]);
    }));

  test('modules on several rows and in float32 too', () =>
    scope(() => {
      manualSeed(3);
      const net = new nn.Sequential(new nn.Linear(16, 32), new nn.GELU(), new nn.Linear(32, 16, { bias: false }));
      const x = randn([8, 16]).requiresGrad_();
      const grads = (): unknown[] => [x, ...net.parameters()].map((leaf) => leaf.grad?.toArray());
      scope(() => backward(net.forward(x).sum()));
      const expected = grads();
      for (const leaf of [x, ...net.parameters()]) leaf.grad = null;
      scope(() => backwardInputsFirst(net.forward(x).sum(), { inputs: [x], ready: () => undefined }));
      expect(grads()).toEqual(expected);
    }));

  test('what it is given is checked', () =>
    scope(() => {
      const x = randn([2]).requiresGrad_();
      expect(() => backwardInputsFirst(x.sum(), { inputs: [x], ready: 3 as never })).toThrow(
        'backwardInputsFirst: ready is a number; give a function',
      );
    }));
});
