import { expect, test } from 'vitest';
import { gradOf, leakFree } from '../../testing/gradients.ts';
import { type AutogradNode, float64, noGrad, scope, type Tensor, tensor, zeros } from '../index.ts';

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

test('a view whose base was changed in place since is no leaf any more, and has a node', () =>
  leakFree(() => {
    const [base, x] = [zeros([2], { dtype: float64 }).add(3), leaf([2, 4])];
    const [read, asked, printed] = [base.at(0), base.at(1), base.at(1)];
    expect([read.isLeaf, read.requiresGrad]).toEqual([true, false]);
    base.mul_(x);
    expect([read.isLeaf, read.requiresGrad]).toEqual([false, true]);
    expect(asked.gradFn?.name).toBe('AsStridedBackward0');
    expect(`${printed}`).toBe('tensor(12., dtype=torch.float64, grad_fn=<AsStridedBackward0>)');
    read.backward();
    expect(gradOf(x)).toEqual([3, 0]);
  }));

test('a view made without recording has no node once its base was changed: asking is an error, printing is not', () =>
  leakFree(() => {
    const [base, x] = [zeros([2]), leaf([2, 4])];
    const view = noGrad(() => base.at(0));
    base.add_(x);
    for (const use of [() => view.isLeaf, () => view.gradFn, () => view.mul(2)])
      expect(use).toThrow(/^(mul: )?A view was created in no_grad mode/);
    expect(view.shape).toEqual([]);
    expect(`${view}`).toBe('tensor(2., grad_fn=<Invalid>)');
  }));
