import { describe, expect, test } from 'vitest';
import { gradOf, leakFree, onRoute, routes } from '../../testing/gradients.ts';
import {
  AutogradFunction,
  type FunctionContext,
  float64,
  grad,
  gradcheck,
  gradgradcheck,
  randn,
  scope,
  type Tensor,
  tensor,
} from '../index.ts';

const leaf = (values: number[]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });

class Square extends AutogradFunction {
  static forward(ctx: FunctionContext, x: Tensor): Tensor {
    ctx.saveForBackward(x);
    return x.mul(x);
  }
  static backward(ctx: FunctionContext, g: Tensor): Tensor {
    const [x] = ctx.savedTensors as [Tensor];
    return g.mul(x).mul(2);
  }
}

/** Saves its own result. */
class Exp extends AutogradFunction {
  static forward(ctx: FunctionContext, x: Tensor): Tensor {
    const y = x.exp();
    ctx.saveForBackward(y);
    return y;
  }
  static backward(ctx: FunctionContext, g: Tensor): Tensor {
    return g.mul((ctx.savedTensors as [Tensor])[0]);
  }
}

class MulAdd extends AutogradFunction {
  static forward(ctx: FunctionContext, x: Tensor, y: Tensor, alpha: number): Tensor[] {
    ctx.saveForBackward(x, y);
    ctx['alpha'] = alpha;
    return [x.mul(y).mul(alpha), x.add(y)];
  }
  static backward(ctx: FunctionContext, gMul: Tensor, gAdd: Tensor): (Tensor | null)[] {
    const [x, y] = ctx.savedTensors as [Tensor, Tensor];
    const alpha = ctx['alpha'] as number;
    return [gMul.mul(y).mul(alpha).add(gAdd), gMul.mul(x).mul(alpha).add(gAdd), null];
  }
}

describe.each(routes)('%s', (_, bridge) => {
  test('forward, backward, name', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2, 3]);
      const y = Square.apply(x);
      expect([y.requiresGrad, y.gradFn?.name, y.toArray()]).toEqual([true, 'SquareBackward', [1, 4, 9]]);
      y.sum().backward();
      expect(gradOf(x)).toEqual([2, 4, 6]);
    }));

  test('several arguments and results, values in the context', () =>
    onRoute(bridge, () => {
      const [x, y] = [leaf([1, 2]), leaf([3, 4])];
      const [m, a] = MulAdd.apply(x, y, 10) as [Tensor, Tensor];
      m.sum().add(a.sum().mul(100)).backward();
      expect([gradOf(x), gradOf(y)]).toEqual([
        [130, 140],
        [110, 120],
      ]);
    }));

  test('results that nobody used have zero gradients, or null', () =>
    onRoute(bridge, () => {
      const seen: unknown[] = [];
      class Pair extends AutogradFunction {
        static forward(ctx: FunctionContext, x: Tensor, materialize: boolean): Tensor[] {
          ctx.setMaterializeGrads(materialize);
          return [x.mul(2), x.mul(3)];
        }
        static backward(_: FunctionContext, a: Tensor, b: Tensor | null): (Tensor | null)[] {
          seen.push(b?.toArray() ?? null);
          return [a.mul(2), null];
        }
      }
      const x = leaf([1, 2]);
      (Pair.apply(x, true)[0] as Tensor).sum().backward();
      (Pair.apply(x, false)[0] as Tensor).sum().backward();
      expect(seen).toEqual([[0, 0], null]);
    }));

  test('gradients of gradients, also with a saved result', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      const [dx] = grad(Square.apply(Square.apply(x)).sum(), x, { createGraph: true });
      const [ddx] = grad((dx as Tensor).sum(), x);
      expect([dx?.toArray(), ddx?.toArray()]).toEqual([
        [4, 32],
        [12, 48],
      ]);
      const points = randn([3], { dtype: float64 }).requiresGrad_();
      gradcheck(Exp.apply.bind(Exp) as never, [points]);
      gradgradcheck(Exp.apply.bind(Exp) as never, [points]);
      gradgradcheck(Square.apply.bind(Square) as never, [points]);
    }));

  test('needsInputGrad says what is wanted in this backward', () =>
    onRoute(bridge, () => {
      const seen: unknown[] = [];
      class Add extends AutogradFunction {
        static forward(ctx: FunctionContext, x: Tensor, y: Tensor, z: number): Tensor {
          seen.push([...ctx.needsInputGrad]);
          return x.add(y).add(z);
        }
        static backward(ctx: FunctionContext, g: Tensor): (Tensor | null)[] {
          seen.push([...ctx.needsInputGrad]);
          return [g, ctx.needsInputGrad[1] === true ? g : null, null];
        }
      }
      const [x, y] = [leaf([1]), leaf([2])];
      Add.apply(x, y.detach(), 3).sum().backward();
      grad(Add.apply(x, y, 3).sum(), y);
      expect(seen).toEqual([
        [true, false, false],
        [true, false, false],
        [true, true, false],
        [false, true, false],
      ]);
    }));

  test('saved tensors are checked and freed', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      const held = x.mul(1);
      const y = Square.apply(held);
      held.detach().add_(1);
      expect(() => y.sum().backward()).toThrow(/modified by an inplace operation/);
      const z = Square.apply(x);
      z.sum().backward(null, { retainGraph: true });
      z.sum().backward();
      expect(() => z.sum().backward()).toThrow(/freed by an earlier backward; give it \{ retainGraph: true \}/);
    }));

  test('an error in backward comes out as it is', () =>
    onRoute(bridge, () => {
      const stop = new RangeError('no way');
      class Bad extends AutogradFunction {
        static forward(_: FunctionContext, x: Tensor): Tensor {
          return x.mul(1);
        }
        static backward(): Tensor {
          throw stop;
        }
      }
      let caught: unknown;
      try {
        Bad.apply(leaf([1]))
          .sum()
          .backward();
      } catch (error) {
        caught = error;
      }
      expect(caught).toBe(stop);
    }));
});

test('nothing is recorded without need', () =>
  leakFree(() => {
    expect(Square.apply(tensor([2], { dtype: float64 })).requiresGrad).toBe(false);
  }));

test('indices are not differentiable', () =>
  leakFree(() => {
    class TopTwo extends AutogradFunction {
      static forward(ctx: FunctionContext, x: Tensor): [Tensor, Tensor] {
        const [values, indices] = x.topk(2) as [Tensor, Tensor];
        const scores = indices.to(float64);
        ctx.markNonDifferentiable(scores);
        ctx.saveForBackward(x, indices);
        return [values, scores];
      }
      static backward(ctx: FunctionContext, g: Tensor): Tensor {
        const [x, indices] = ctx.savedTensors as [Tensor, Tensor];
        return x.zerosLike().scatter(0, indices, g);
      }
    }
    const x = leaf([1, 3, 2]);
    const [values, scores] = TopTwo.apply(x);
    expect([values.requiresGrad, scores.requiresGrad]).toEqual([true, false]);
    values.sum().backward();
    expect(gradOf(x)).toEqual([0, 1, 1]);
  }));

test('a function that changes its argument in place', () =>
  leakFree(() => {
    class Double_ extends AutogradFunction {
      static forward(ctx: FunctionContext, x: Tensor): Tensor {
        x.mul_(2);
        ctx.markDirty(x);
        return x;
      }
      static backward(_: FunctionContext, g: Tensor): Tensor {
        return g.mul(2);
      }
    }
    const x = leaf([1, 2]);
    const y = x.mul(1);
    const z = Double_.apply(y);
    expect(z.isSame(y)).toBe(true);
    expect(y.gradFn?.name).toBe('Double_Backward');
    y.mul(y).sum().backward();
    expect(gradOf(x)).toEqual([8, 16]);
  }));

test('an argument returned as it is becomes a view', () =>
  leakFree(() => {
    class Same extends AutogradFunction {
      static forward(_: FunctionContext, x: Tensor): Tensor {
        return x;
      }
      static backward(_: FunctionContext, g: Tensor): Tensor {
        return g.mul(7);
      }
    }
    const x = leaf([1]);
    Same.apply(x).sum().backward();
    expect(gradOf(x)).toEqual([7]);
  }));

test('wrong counts and kinds are named', () =>
  leakFree(() => {
    const make = (result: unknown): (() => void) => {
      class Odd extends AutogradFunction {
        static forward(_: FunctionContext, x: Tensor, _n: number): Tensor {
          return x.mul(1);
        }
        static backward(): Tensor {
          return result as Tensor;
        }
      }
      return () =>
        Odd.apply(leaf([1]), 3)
          .sum()
          .backward();
    };
    const one = tensor([1], { dtype: float64 });
    expect(make([one])).toThrow(
      'Odd.backward: returned 1 gradients for 2 arguments of forward; return one for each, null for those without',
    );
    expect(make([one, one])).toThrow(
      'Odd.backward: gradient 1 is a tensor, but argument 1 of forward was not; return null there',
    );
    expect(make([3, null])).toThrow('Odd.backward: gradient 0 is not a tensor but a number');
    class Text extends AutogradFunction {
      static forward(_ctx: FunctionContext, _x: Tensor): Tensor {
        return 'text' as unknown as Tensor;
      }
      static backward(_: FunctionContext, g: Tensor): Tensor {
        return g;
      }
    }
    expect(() => Text.apply(leaf([1]))).toThrow(
      'Text.forward: must return a tensor or an array of tensors, got a string',
    );
    expect(() => (class extends AutogradFunction {} as unknown as typeof Square).apply(leaf([1]))).toThrow(
      /static forward and a static backward/,
    );
  }));

test('a loop of custom functions leaves nothing behind', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    for (let i = 0; i < 2000; i++) scope(() => (i % 2 === 0 ? Square.apply(x).sum().backward() : void Square.apply(x)));
  }));
