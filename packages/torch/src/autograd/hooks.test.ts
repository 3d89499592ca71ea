import { describe, expect, test } from 'vitest';
import { gradOf, onRoute, routes } from '../../testing/gradients.ts';
import {
  AutogradFunction,
  checkpoint,
  enableGrad,
  type FunctionContext,
  float32,
  float64,
  grad,
  inputBackward,
  liveTensors,
  ones,
  scope,
  type Tensor,
  tensor,
} from '../index.ts';
import { liveCallbacks } from './callbacks.ts';

const leaf = (values: number[]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });

describe.each(routes)('%s', (_, bridge) => {
  test('a hook sees the gradient and may change it', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      const y = x.mul(3);
      const seen: unknown[] = [];
      y.registerHook((g) => void seen.push(g.toArray()));
      y.registerHook((g) => g.mul(2));
      y.registerHook((g) => void seen.push(g.toArray()));
      y.mul(y).sum().backward();
      expect(seen).toEqual([
        [6, 12],
        [12, 24],
      ]);
      expect(gradOf(x)).toEqual([36, 72]);
    }));

  test('hooks on leaves, removed ones do not run, others stay', () =>
    onRoute(bridge, () => {
      const x = leaf([1]);
      const [a, b] = [x.registerHook((g) => g.add(1)), x.registerHook((g) => g.mul(10))];
      x.mul(2).sum().backward();
      expect(gradOf(x)).toEqual([30]);
      a.remove();
      a.remove();
      x.grad = null;
      x.mul(2).sum().backward();
      expect(gradOf(x)).toEqual([20]);
      b[Symbol.dispose]();
      x.grad = null;
      expect(grad(x.mul(2).sum(), x)[0]?.toArray()).toEqual([2]);
    }));

  test('hooks run for grad() too', () =>
    onRoute(bridge, () => {
      const x = leaf([1]);
      x.registerHook((g) => g.mul(5));
      expect(grad(x.mul(2).sum(), x)[0]?.toArray()).toEqual([10]);
    }));

  test('after accumulation', () =>
    onRoute(bridge, () => {
      const x = leaf([1]);
      const seen: unknown[] = [];
      const handle = x.registerPostAccumulateGradHook((p) => {
        seen.push(p.isSame(x), p.grad?.toArray());
        p.grad = null;
      });
      x.mul(2).sum().backward();
      expect(seen).toEqual([true, [2]]);
      expect(x.grad).toBe(null);
      handle.remove();
      x.mul(2).sum().backward();
      expect(gradOf(x)).toEqual([2]);
      expect(() => x.mul(2).registerPostAccumulateGradHook(() => undefined)).toThrow(/use registerHook/);
    }));

  test('an error thrown in a hook is the very same error, and the next backward works', () =>
    onRoute(bridge, () => {
      const x = leaf([1]);
      const stop = new Error('stop here');
      const handle = x.registerHook(() => {
        throw stop;
      });
      let caught: unknown;
      try {
        x.mul(2).sum().backward();
      } catch (error) {
        caught = error;
      }
      expect(caught).toBe(stop);
      handle.remove();
      x.registerHook(() => {
        throw 'plain text'; // eslint-disable-line no-throw-literal
      });
      expect(() => x.mul(2).sum().backward()).toThrow('plain text');
    }));

  test('a wrong result of a hook is refused', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      let result: unknown = ones([3], { dtype: float64 });
      x.registerHook(() => result as Tensor);
      expect(() => x.sum().backward()).toThrow(/shape \[3\] in place of \[2\]/);
      result = ones([2], { dtype: float32 });
      expect(() => x.sum().backward()).toThrow(/float32 on cpu in place of float64/);
      result = 3;
      expect(() => x.sum().backward()).toThrow(/must return a tensor or nothing/);
    }));

  test('a backward inside a hook', () =>
    onRoute(bridge, () => {
      const [x, w] = [leaf([2]), leaf([5])];
      const inner: unknown[] = [];
      x.registerHook((g) => {
        w.registerHook((h) => void inner.push(h.toArray()));
        enableGrad(() => {
          w.mul(g).sum().backward();
          inner.push(grad(w.mul(w).sum(), w)[0]?.toArray());
        });
      });
      x.mul(x).sum().backward();
      expect(gradOf(x)).toEqual([4]);
      expect(gradOf(w)).toEqual([4]);
      expect(inner).toEqual([[4], [10], [10]]);
    }));

  test('everything at once: hooks, a custom function and checkpoints, nested and split', () =>
    onRoute(bridge, () => {
      class Twice extends AutogradFunction {
        static forward(_ctx: FunctionContext, x: Tensor): Tensor {
          return x.mul(2);
        }
        static backward(_ctx: FunctionContext, g: Tensor): Tensor {
          return g.mul(2);
        }
      }
      const [x, w] = [leaf([1, 2]), leaf([3, 4])];
      w.registerHook((g) => g.mul(10));
      const y = checkpoint((a: Tensor) => checkpoint((b: Tensor) => Twice.apply(b.mul(w)), [a]).mul(w), [x]);
      const { inputGrads, weights } = inputBackward({ outputs: y.sum(), inputs: [x] });
      expect(inputGrads[0]?.toArray()).toEqual([18, 32]);
      weights.run();
      expect(gradOf(w)).toEqual([120, 320]);
    }));
});

test('hooks that are added and removed in a loop leave nothing', () => {
  scope(() => {
    const x = leaf([1]);
    x.registerHook(() => undefined).remove();
    const before = [liveTensors(), liveCallbacks()];
    for (let i = 0; i < 2000; i++) {
      const handle = x.registerHook((g) => g);
      scope(() => x.mul(2).sum().backward());
      handle.remove();
    }
    expect([liveTensors(), liveCallbacks()]).toEqual(before);
  });
});

test('a hook needs a gradient to wait for', () => {
  scope(() => {
    expect(() => tensor([1.5]).registerHook(() => undefined)).toThrow(/would never run/);
    expect(() => leaf([1]).registerHook(3 as never)).toThrow(/expected a function/);
  });
});
