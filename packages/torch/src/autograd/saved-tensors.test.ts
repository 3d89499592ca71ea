import { describe, expect, test } from 'vitest';
import { expectSame, gradOf, onRoute, routes } from '../../testing/gradients.ts';
import {
  AutogradFunction,
  type FunctionContext,
  float64,
  inputBackward,
  liveTensors,
  randn,
  savedTensorsHooks,
  scope,
  type Tensor,
  tensor,
} from '../index.ts';
import { liveCallbacks } from './callbacks.ts';

const leaf = (values: number[]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });

describe.each(routes)('%s', (_, bridge) => {
  test('what the graph keeps goes through pack and unpack', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      const log: unknown[] = [];
      const y = savedTensorsHooks(
        (t) => {
          log.push(['pack', t.toArray()]);
          return t.toArray() as number[];
        },
        (values) => {
          log.push(['unpack', values]);
          return tensor(values, { dtype: float64 });
        },
        () => x.mul(x).exp(),
      );
      y.sum().backward();
      expect(log).toEqual([
        ['pack', [1, 2]],
        ['pack', [1, 2]],
        ['pack', y.toArray()],
        ['unpack', y.toArray()],
        ['unpack', [1, 2]],
        ['unpack', [1, 2]],
      ]);
      const wanted = y.mul(x).mul(2);
      expectSame(x.grad, wanted.detach());
    }));

  test('tensors packed in a structure live as long as the graph', () =>
    onRoute(bridge, () => {
      const x = leaf([1, 2]);
      const y = scope(() =>
        savedTensorsHooks(
          (t) => ({ parts: [t.mul(2)] }),
          ({ parts }) => (parts[0] as Tensor).div(2),
          () => x.sin().exp(),
        ),
      );
      const before = liveTensors();
      y.sum().backward();
      const [dx] = [x.grad!];
      expect(dx.toArray()).toEqual(x.sin().exp().mul(x.cos()).toArray());
      y.dispose();
      liveCallbacks();
      expect(liveTensors()).toBeLessThan(before + 12);
    }));

  test('hooks nest, the innermost counts; operators inside pack do not come back to it', () =>
    onRoute(bridge, () => {
      const x = leaf([3]);
      const w = leaf([2]);
      const log: string[] = [];
      const inner = savedTensorsHooks(
        (t) => {
          log.push('outer');
          return t.mul(w);
        },
        (t) => t.div(w),
        () =>
          x.mul(
            savedTensorsHooks(
              (t) => {
                log.push('inner');
                return t;
              },
              (t) => t,
              () => x.exp(),
            ),
          ),
      );
      inner.sum().backward();
      expect(log).toEqual(['inner', 'outer', 'outer']);
      expect(gradOf(x)).toEqual([Math.exp(3) + 3 * Math.exp(3)]);
    }));

  test('with custom functions and the split backward', () =>
    onRoute(bridge, () => {
      class Cube extends AutogradFunction {
        static forward(ctx: FunctionContext, x: Tensor): Tensor {
          ctx.saveForBackward(x);
          return x.pow(3);
        }
        static backward(ctx: FunctionContext, g: Tensor): Tensor {
          return (ctx.savedTensors as [Tensor])[0].square().mul(3).mul(g);
        }
      }
      const [x, w] = [leaf([1, 2]), leaf([3, 4])];
      let packed = 0;
      const y = savedTensorsHooks(
        (t) => {
          packed++;
          return t.mul(1);
        },
        (t) => t,
        () => Cube.apply(x.mul(w)),
      );
      const { inputGrads, weights } = inputBackward({ outputs: y.sum(), inputs: [x] });
      weights.run();
      expect(packed).toBe(3);
      expect([inputGrads[0]?.toArray(), gradOf(w)]).toEqual([
        [81, 768],
        [27, 384],
      ]);
    }));

  test('errors in pack and unpack come out as they are', () =>
    onRoute(bridge, () => {
      const x = leaf([1]);
      const stop = new Error('no room');
      expect(() =>
        savedTensorsHooks(
          () => {
            throw stop;
          },
          (t: Tensor) => t,
          () => x.exp(),
        ),
      ).toThrow(stop);
      const y = savedTensorsHooks(
        () => 0,
        () => 3 as unknown as Tensor,
        () => x.exp(),
      );
      expect(() => y.sum().backward()).toThrow(/unpack must return a tensor/);
      expect(x.mul(2).requiresGrad).toBe(true);
    }));
});

test('a handle disposed of inside pack does not pull the ground from under the operator', () => {
  const before = liveTensors();
  scope(() => {
    const x = randn([64], { dtype: float64 }).requiresGrad_();
    const y = x.mul(1);
    const z = savedTensorsHooks(
      (t) => {
        y.dispose();
        for (let i = 0; i < 3000; i++) t.add(1); // many new handles: the table grows
        return t.mul(1);
      },
      (t) => t,
      () => y.mul(y),
    );
    z.sum().backward();
    expect(x.grad?.toArray()).toEqual(x.mul(2).toArray());
  });
  liveCallbacks();
  expect(liveTensors()).toBe(before);
});
