import { expect, test } from 'vitest';
import { gradOf, leakFree } from '../../testing/gradients.ts';
import { type AutogradNode, float64, scope, type Tensor, tensor } from '../index.ts';

const leaf = (values: number[]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });

test('the graph can be walked', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    expect(x.gradFn).toBe(null);
    expect(x.gradNode?.name).toBe('torch::autograd::AccumulateGrad');
    const y = x.mul(x).add(x).sum();
    const names: string[] = [];
    const leafName = 'torch::autograd::AccumulateGrad';
    const walk = (node: AutogradNode | null): void => {
      if (node === null) return;
      names.push(node.name);
      for (const [next] of node.nextFunctions) walk(next);
    };
    walk(y.gradFn);
    expect(names).toEqual(['SumBackward0', 'AddBackward0', 'MulBackward0', leafName, leafName, leafName]);
  }));

test('nodes are compared by what they are, and freed with their scope', () =>
  leakFree(() => {
    const x = leaf([1]);
    const y = x.mul(x);
    const [a, b] = [y.gradFn!, y.gradFn!];
    expect([a.isSame(b), a.key === b.key, `${a}`]).toEqual([true, true, '<MulBackward0>']);
    const inside = scope(() => {
      const node = y.gradFn!;
      return { name: node.name, late: (): string => node.name };
    });
    expect(inside.name).toBe('MulBackward0');
    expect(inside.late).toThrow(/disposed/);
    expect(scope(() => y.gradFn!).name).toBe('MulBackward0');
  }));

test('hooks around a node', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const y = x.mul(3);
    const node = y.gradFn!;
    const seen: unknown[] = [];
    const before = node.registerPrehook(([g]) => [g!.mul(10)]);
    node.registerHook((made, had) => {
      seen.push(
        made.map((g) => g?.toArray() ?? null),
        had.map((g) => g?.toArray() ?? null),
      );
    });
    y.sum().backward(null, { retainGraph: true });
    expect(gradOf(x)).toEqual([30, 30]);
    expect(seen).toEqual([[[30, 30]], [[10, 10]]]);
    before.remove();
    x.grad = null;
    y.sum().backward();
    expect(gradOf(x)).toEqual([3, 3]);
  }));
