import { describe, expect, test } from 'vitest';
import { gradOf, leakFree } from '../../testing/gradients.ts';
import {
  backward,
  backwardInputsFirst,
  enableGrad,
  float32,
  float64,
  grad,
  inferenceMode,
  inputBackward,
  isGradEnabled,
  noGrad,
  ones,
  randn,
  scope,
  setGradEnabled,
  startBackward,
  type Tensor,
  TorchError,
  tensor,
  zeros,
} from '../index.ts';

const leaf = (values: number | number[] | number[][]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });

describe('backward', () => {
  test('accumulates into leaves', () =>
    leakFree(() => {
      const x = leaf([1, 2, 3]);
      x.mul(x).sum().backward();
      expect(gradOf(x)).toEqual([2, 4, 6]);
      x.mul(3).sum().backward();
      expect(gradOf(x)).toEqual([5, 7, 9]);
    }));

  test('several roots with gradients of their own', () =>
    leakFree(() => {
      const x = leaf([1, 2]);
      const [y, z] = [x.mul(2), x.mul(x).sum()];
      backward([y, z], { gradTensors: [tensor([10, 20], { dtype: float64 }), null] });
      expect(gradOf(x)).toEqual([22, 44]);
    }));

  test('a root that is a leaf, a root above another root', () =>
    leakFree(() => {
      const x = leaf([1, 2]);
      x.backward(tensor([3, 4], { dtype: float64 }));
      expect(gradOf(x)).toEqual([3, 4]);
      x.grad = null;
      const y = x.mul(2);
      const z = y.mul(3);
      backward([z, y], { gradTensors: [ones([2], { dtype: float64 }), ones([2], { dtype: float64 })] });
      expect(gradOf(x)).toEqual([8, 8]);
    }));

  test('retainGraph goes through the graph again, and without it the second time is an error', () =>
    leakFree(() => {
      const x = leaf([1, 2]);
      const y = x.mul(x).sum();
      y.backward(null, { retainGraph: true });
      y.backward();
      expect(gradOf(x)).toEqual([4, 8]);
      expect(() => y.backward()).toThrow(/second time/);
    }));

  test('createGraph records the gradient', () =>
    leakFree(() => {
      const x = leaf([2]);
      x.pow(3).sum().backward(null, { createGraph: true });
      const g = x.grad!;
      expect(g.requiresGrad).toBe(true);
      x.grad = null;
      g.sum().backward();
      expect(gradOf(x)).toEqual([12]);
      x.grad = null;
    }));

  test('inputs limits where gradients go', () =>
    leakFree(() => {
      const [x, y] = [leaf([1]), leaf([2])];
      backward(x.mul(y).sum(), { inputs: [x] });
      expect([gradOf(x), gradOf(y)]).toEqual([[2], null]);
    }));

  test('through views, changes in place and broadcasting, as the engine does', () =>
    leakFree(() => {
      const x = leaf([
        [1, 2],
        [3, 4],
      ]);
      const y = x.mul(2);
      y.select(0, 1).mul_(10);
      y.add(tensor([1, 2], { dtype: float64 }))
        .sum()
        .backward();
      expect(gradOf(x)).toEqual([
        [2, 2],
        [20, 20],
      ]);
    }));

  test('retainGrad keeps the gradient of a computed tensor', () =>
    leakFree(() => {
      const x = leaf([1, 2]);
      const y = x.mul(2).retainGrad();
      y.mul(y).sum().backward();
      expect(gradOf(y)).toEqual([4, 8]);
    }));

  test('errors say what to do', () =>
    leakFree(() => {
      const x = leaf([1, 2]);
      const code = (body: () => void): string => {
        try {
          body();
        } catch (error) {
          if (error instanceof TorchError) return `${error.code}: ${error.message}`;
        }
        return 'no error';
      };
      expect(code(() => x.mul(2).backward())).toMatchInlineSnapshot(
        `"SHAPE: backward: tensor 0 has shape [2], and only a scalar needs no gradient; give its gradient, or reduce it with sum() or mean()"`,
      );
      expect(code(() => zeros([2]).sum().backward())).toMatchInlineSnapshot(
        `"NO_GRAD: backward: tensor 0 does not require a gradient: nothing it was computed from does, or it was computed inside noGrad()"`,
      );
      expect(code(() => x.mul(2).backward(ones([3], { dtype: float64 })))).toMatchInlineSnapshot(
        `"SHAPE: backward: gradient 0 has shape [3], its tensor [2]; they must be the same"`,
      );
      expect(code(() => backward([]))).toMatchInlineSnapshot(
        `"BAD_ARGUMENT: backward: tensors must be a tensor or an array of at least one"`,
      );
      expect(code(() => backward([x.sum()], { retainGraf: true } as never))).toMatchInlineSnapshot(
        `"UNKNOWN_OPTION: backward: unknown option 'retainGraf' (did you mean 'retainGraph'?); it takes gradTensors, retainGraph, createGraph, inputs"`,
      );
      expect(code(() => x.sum().backward({ retainGraph: true } as never))).toMatchInlineSnapshot(
        `"BAD_ARGUMENT: backward: the first argument is the gradient, a tensor; give options second: backward(null, { retainGraph: true })"`,
      );
      expect(code(() => backward([x.sum(), x.sum()], { gradTensors: [null] }))).toMatchInlineSnapshot(
        `"BAD_ARGUMENT: backward: 1 gradients for 2 tensors; give one for each, null for a scalar"`,
      );
    }));
});

describe('grad', () => {
  test('gives gradients without accumulating', () =>
    leakFree(() => {
      const [x, y] = [leaf([1, 2]), leaf([3, 4])];
      const [dx, dy] = grad(x.mul(y).sum(), [x, y]);
      expect([dx?.toArray(), dy?.toArray(), gradOf(x)]).toEqual([[3, 4], [1, 2], null]);
    }));

  test('second derivatives', () =>
    leakFree(() => {
      const x = leaf([2, 3]);
      const [dx] = grad(x.pow(3).sum(), [x], { createGraph: true });
      const [ddx] = grad((dx as Tensor).sum(), [x]);
      expect(ddx?.toArray()).toEqual([12, 18]);
    }));

  test('an input that is not used', () =>
    leakFree(() => {
      const [x, y] = [leaf([1]), leaf([2])];
      expect(() => grad(x.sum(), [x, y])).toThrow(/do not depend on inputs\[1\]/);
      expect(grad(x.sum(), [x, y], { allowUnused: true })[1]).toBe(null);
    }));
});

describe('modes', () => {
  test('noGrad, enableGrad, setGradEnabled nest and are put back after errors', () =>
    leakFree(() => {
      const x = leaf([1]);
      expect(noGrad(() => [isGradEnabled(), enableGrad(() => x.mul(2).requiresGrad), x.mul(2).requiresGrad])).toEqual([
        false,
        true,
        false,
      ]);
      expect(() =>
        noGrad(() => {
          throw new Error('stop');
        }),
      ).toThrow('stop');
      expect(isGradEnabled()).toBe(true);
      expect(setGradEnabled(false)).toBe(true);
      expect(setGradEnabled(true)).toBe(false);
    }));

  test('inferenceMode makes tensors that gradients refuse', () =>
    leakFree(() => {
      const x = leaf([1]);
      const y = inferenceMode(() => x.mul(2));
      expect([y.isInference(), y.requiresGrad]).toEqual([true, false]);
      expect(() => x.mul(y).sum().backward()).toThrow(/[Ii]nference/);
    }));

  test('an asynchronous function is refused', () => {
    expect(() => noGrad(async () => Promise.resolve(1))).toThrow(/asynchronous/);
  });
});

test('a long chain and a wide sum do not overflow the stack', () =>
  leakFree(() => {
    const x = leaf([1]);
    const y = scope(() => {
      let chain = x.mul(1);
      for (let i = 0; i < 20_000; i++) chain = chain.add(0);
      return chain;
    });
    y.sum().backward();
    expect(gradOf(x)).toEqual([1]);
  }));

test('float32 gradients keep the type and shape of their leaf', () =>
  leakFree(() => {
    const w = randn([3, 4]).requiresGrad_();
    ones([2, 3]).matmul(w).to(float64).sum().backward();
    expect([w.grad?.dtype, w.grad?.shape]).toEqual([float32, [3, 4]]);
  }));

test('a view made inside noGrad() whose base requires a gradient has none of its own: an error of every backward', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const [view] = noGrad(() => x.unbind(0)) as [Tensor];
    expect([view.requiresGrad, view.isLeaf, view.gradFn]).toEqual([true, true, null]);
    for (const run of [
      () => view.backward(),
      () => startBackward(view),
      () => backwardInputsFirst(view, { inputs: [x], ready: () => undefined }),
      () => inputBackward({ outputs: [view], inputs: [x] }),
    ])
      expect(run).toThrow(expect.objectContaining({ code: 'NO_GRAD' }));
    expect(() => grad([view], [x])).toThrow(/does not require grad/);
    const y = x.mul(2).sum();
    inputBackward({ outputs: [y], inputs: [view] }).weights.run();
    expect([gradOf(x), gradOf(view)]).toEqual([[2, 2], null]);
  }));
