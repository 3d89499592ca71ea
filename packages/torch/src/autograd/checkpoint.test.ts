import { describe, expect, test } from 'vitest';
import { expectSame, gradOf, leakFree, onRoute, routes } from '../../testing/gradients.ts';
import { native } from '../addon/addon.ts';
import {
  autocast,
  checkpoint,
  dropout,
  float32,
  float64,
  grad,
  inputBackward,
  linear,
  liveBytes,
  manualSeed,
  noGrad,
  rand,
  randn,
  scope,
  type Tensor,
  tensor,
} from '../index.ts';

/** A small network that counts how often each of its layers ran. */
function network(width: number, layers: number) {
  const weights = Array.from({ length: layers }, () =>
    randn([width, width], { dtype: float64 }).mul(0.3).requiresGrad_(),
  );
  const runs = new Array<number>(layers).fill(0);
  const layer = (i: number, x: Tensor): Tensor => {
    runs[i] = (runs[i] as number) + 1;
    return linear(x, weights[i] as Tensor).tanh();
  };
  return { weights, runs, layer };
}

function takeGrads(x: Tensor, weights: readonly Tensor[]): (Tensor | null)[] {
  return [x, ...weights].map((t) => {
    const g = t.grad;
    t.grad = null;
    return g;
  });
}

describe.each(routes)('%s', (_, bridge) => {
  test('same result, same gradients, one more forward', () =>
    onRoute(bridge, () => {
      const { weights, runs, layer } = network(4, 3);
      const x = randn([2, 4], { dtype: float64 }).requiresGrad_();
      const body = (a: Tensor): Tensor => layer(2, layer(1, layer(0, a)));
      const plain = body(x);
      plain.sum().backward();
      const wanted = takeGrads(x, weights);
      runs.fill(0);
      const y = checkpoint(body, [x]);
      expectSame(y, plain);
      expect(runs).toEqual([1, 1, 1]);
      y.sum().backward();
      expect(runs).toEqual([2, 2, 2]);
      takeGrads(x, weights).forEach((g, i) => expectSame(g, wanted[i]!));
    }));

  test('several outputs, other arguments, nested structures', () =>
    onRoute(bridge, () => {
      const [x, y] = [
        tensor([1, 2], { dtype: float64, requiresGrad: true }),
        tensor([3, 4], { dtype: float64, requiresGrad: true }),
      ];
      let runs = 0;
      const [a, b] = checkpoint(
        (parts: { left: Tensor; right: Tensor[] }, factor: number) => {
          runs++;
          const right = parts.right[0] as Tensor;
          return [parts.left.mul(right).exp(), parts.left.sin().mul(factor)] as const;
        },
        [{ left: x, right: [y] }, 5],
      );
      a.sum().backward();
      expect(runs).toBe(2);
      b.sum().backward();
      expect(runs).toBe(3);
      const e = [Math.exp(3), Math.exp(8)] as const;
      expect(gradOf(y)).toEqual([e[0], 2 * e[1]]);
      expect((gradOf(x) as number[])[0]).toBeCloseTo(3 * e[0] + 5 * Math.cos(1), 10);
    }));

  test('nested checkpoints', () =>
    onRoute(bridge, () => {
      const { weights, runs, layer } = network(3, 3);
      const x = randn([2, 3], { dtype: float64 }).requiresGrad_();
      layer(2, layer(1, layer(0, x)))
        .sum()
        .backward();
      const wanted = takeGrads(x, weights);
      runs.fill(0);
      const y = checkpoint(
        (a: Tensor) =>
          layer(
            2,
            checkpoint((b: Tensor) => layer(1, b), [layer(0, a)]),
          ),
        [x],
      );
      y.sum().backward();
      takeGrads(x, weights).forEach((g, i) => expectSame(g, wanted[i]!));
      expect(runs).toEqual([2, 3, 2]);
    }));

  test('the halves of a split backward share one more forward', () =>
    onRoute(bridge, () => {
      const { weights, runs, layer } = network(4, 3);
      const x = randn([2, 4], { dtype: float64 }).requiresGrad_();
      const body = (a: Tensor): Tensor => layer(2, layer(1, layer(0, a)));
      body(x).sum().backward();
      const wanted = takeGrads(x, weights);
      runs.fill(0);
      const { inputGrads, weights: half } = inputBackward({ outputs: checkpoint(body, [x]).sum(), inputs: [x] });
      expect(runs).toEqual([2, 2, 2]);
      half.run();
      expect(runs).toEqual([2, 2, 2]);
      expectSame(inputGrads[0]!, wanted[0]!);
      takeGrads(x, weights)
        .slice(1)
        .forEach((g, i) => expectSame(g, wanted[i + 1]!));
    }));

  test('retainGraph runs it once per backward, gradients of gradients work', () =>
    onRoute(bridge, () => {
      const x = tensor([0.5, 1], { dtype: float64, requiresGrad: true });
      let runs = 0;
      const f = (a: Tensor): Tensor => {
        runs++;
        return a.sin().exp();
      };
      const y = checkpoint(f, [x]).sum();
      y.backward(null, { retainGraph: true });
      y.backward(null, { retainGraph: true });
      y.backward();
      expect(runs).toBe(4);
      const plain = grad(grad(f(x).sum(), x, { createGraph: true })[0]?.sum() as Tensor, x)[0] as Tensor;
      const checked = grad(
        grad(checkpoint(f, [x]).sum(), x, { createGraph: true })[0]?.sum() as Tensor,
        x,
      )[0] as Tensor;
      expectSame(checked, plain);
    }));

  test('dropout gets the same numbers again, and the sequence goes on as without a checkpoint', () =>
    onRoute(bridge, () => {
      const x = randn([50], { dtype: float64 }).requiresGrad_();
      const f = (a: Tensor): Tensor => dropout(a.mul(rand([50], { dtype: float64 })).exp(), 0.5, true);
      const run = (wrap: boolean): [number[], unknown, unknown] => {
        manualSeed(7);
        const y = wrap ? checkpoint(f, [x]) : f(x);
        const middle = rand([1]).toArray();
        y.sum().backward();
        const [g] = takeGrads(x, []);
        return [g!.toArray() as number[], middle, rand([1]).toArray()];
      };
      expect(run(true)).toEqual(run(false));
    }));

  test('a function that does something else the second time is told so', () =>
    onRoute(bridge, () => {
      const x = tensor(
        [
          [1, 2],
          [3, 4],
        ],
        { dtype: float64, requiresGrad: true },
      );
      let calls = 0;
      const shapes = checkpoint((a: Tensor) => (calls++ === 0 ? a : (a.select(0, 0) as Tensor)).exp().sum(), [x]);
      expect(() => shapes.backward()).toThrow(
        /tensor 1 of 1 that the function saved for backward was Double\[2, 2\] on cpu, and is Double\[2\] on cpu/,
      );
      calls = 0;
      const fewer = checkpoint((a: Tensor) => (calls++ === 0 ? a.exp().exp() : a.exp()), [x]);
      expect(() => fewer.sum().backward()).toThrow(/saved 2 tensors for backward, and 1 when it ran again/);
      calls = 0;
      const more = checkpoint((a: Tensor) => (calls++ === 0 ? a.exp() : a.exp().exp()), [x], { earlyStop: false });
      expect(() => more.sum().backward()).toThrow(/saved 1 tensors for backward, and more when it ran again/);
      calls = 0;
      checkpoint((a: Tensor) => (calls++ === 0 ? a.exp() : a.exp().exp()), [x], {
        earlyStop: false,
        determinismCheck: false,
      })
        .sum()
        .backward();
      expect(calls).toBe(2);
    }));

  test('an error in the second run comes out as it is', () =>
    onRoute(bridge, () => {
      const x = tensor([1], { dtype: float64, requiresGrad: true });
      let calls = 0;
      const stop = new Error('second run');
      const y = checkpoint(
        (a: Tensor) => {
          if (calls++ > 0) throw stop;
          return a.exp();
        },
        [x],
      );
      expect(() => y.sum().backward()).toThrow(stop);
    }));
});

test('it stops early: what comes after the last saved tensor does not run again', () =>
  leakFree(() => {
    const x = tensor([1, 2], { dtype: float64, requiresGrad: true });
    const ran: string[] = [];
    const f = (a: Tensor): Tensor => {
      const y = a.exp();
      ran.push('after');
      return y.add(1);
    };
    checkpoint(f, [x]).sum().backward();
    expect(ran).toEqual(['after']);
    checkpoint(f, [x], { earlyStop: false }).sum().backward();
    expect(ran).toEqual(['after', 'after', 'after']);
  }));

test('autocast is as it was the first time', () =>
  leakFree(() => {
    const w = randn([4, 4]).requiresGrad_();
    const x = randn([2, 4]).requiresGrad_();
    const types: string[] = [];
    const f = (a: Tensor): Tensor => {
      const y = linear(a, w);
      types.push(y.dtype.name);
      return y.tanh();
    };
    const y = autocast({ dtype: 'bfloat16' }, () => checkpoint(f, [x]));
    y.sum().backward();
    expect(types).toEqual(['bfloat16', 'bfloat16']);
    expect(w.grad?.dtype).toBe(float32);
  }));

test('memory between forward and backward is the input only', () =>
  leakFree(() => {
    const x = randn([256, 256]).requiresGrad_();
    const bytes = 256 * 256 * 4;
    const f = (a: Tensor): Tensor => {
      let y = a;
      for (let i = 0; i < 20; i++) y = y.sin();
      return y.sum();
    };
    const base = native.liveBytes();
    const plain = scope(() => f(x));
    const kept = native.liveBytes() - base;
    plain.dispose();
    const checked = scope(() => checkpoint(f, [x]));
    const dropped = native.liveBytes() - base;
    expect(kept).toBeGreaterThan(18 * bytes);
    expect(dropped).toBeLessThan(bytes / 2);
    checked.backward();
    expect(native.liveBytes() - base).toBeLessThan(1.5 * bytes); // the gradient
    expectSame(x.grad, grad(f(x), x)[0] as Tensor);
  }));

test('without gradients, or with none needed, it is a plain call', () =>
  leakFree(() => {
    const x = randn([2]);
    let runs = 0;
    const f = (a: Tensor): Tensor => {
      runs++;
      return a.exp();
    };
    noGrad(() => checkpoint(f, [x.clone().requiresGrad_()]));
    expect(checkpoint(f, [x]).requiresGrad).toBe(false);
    expect(runs).toBe(2);
  }));

test('operators that save their own results keep no memory after the backward', () => {
  const x = randn([64, 64]).requiresGrad_();
  const run = (): void =>
    scope(() => {
      const y = checkpoint((a: Tensor) => a.tanh().mul(2).sigmoid().relu().exp(), [x]);
      y.sum().backward();
    });
  run(); // the gradient is there from now on
  const before = liveBytes();
  for (let i = 0; i < 4; i++) run();
  expect(liveBytes()).toBe(before);
  x.grad = null;
});

test('a tensor of the closure that is gone is explained', () =>
  leakFree(() => {
    const x = randn([2]).requiresGrad_();
    const y = scope(() => {
      const scale = randn([2]);
      return checkpoint((a: Tensor) => a.mul(scale).exp(), [x]);
    });
    expect(() => y.sum().backward()).toThrow(/hand tensors over in the array of arguments/);
  }));

test('arguments are checked', () => {
  expect(() => checkpoint(3 as never, [])).toThrow(/expected a function/);
  expect(() => checkpoint((a: Tensor) => a, randn([1]) as never)).toThrow(/array of arguments/);
  expect(() => checkpoint((a: Tensor) => a, [randn([1])], { preserveRngState: true } as never)).toThrow(
    /unknown option/,
  );
});
