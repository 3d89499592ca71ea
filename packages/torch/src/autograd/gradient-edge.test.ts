import { expect, test } from 'vitest';
import { gradOf, leakFree } from '../../testing/gradients.ts';
import { native } from '../addon/addon.ts';
import {
  type AutogradNode,
  backward,
  backwardInputsFirst,
  callOp,
  cat,
  float64,
  GradientEdge,
  getGradientEdge,
  grad,
  inputBackward,
  keep,
  nn,
  noGrad,
  scope,
  startBackward,
  type Tensor,
  tensor,
} from '../index.ts';

const leaf = (values: number[]): Tensor => tensor(values, { dtype: float64, requiresGrad: true });
const row = (values: number[]): Tensor => tensor(values, { dtype: float64 });

test('an edge says what it leads to, and prints', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const y = x.mul(3);
    using edge = getGradientEdge(y);
    expect(`${edge}`).toBe('<edge to output 0 of MulBackward1, float64[2]>');
    expect([edge.shape, edge.dtype.name, edge.device, edge.outputNr]).toEqual([[2], 'float64', 'cpu', 0]);
    expect(edge.node.isSame(y.gradFn!)).toBe(true);
    using ofLeaf = getGradientEdge(x);
    expect(`${ofLeaf}`).toBe('<edge to output 0 of torch::autograd::AccumulateGrad, float64[2]>');
    const [, second] = callOp('aten::split.Tensor', [x, 1, 0]) as Tensor[];
    expect(getGradientEdge(second as Tensor).outputNr).toBe(1);
  }));

test('a backward begins at an edge when the tensor and its memory are gone', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const y = x.mul(3);
    const weak = y.detach();
    const before = native.storageUseCount(weak.handle);
    const edge = getGradientEdge(y);
    y.dispose();
    expect(native.storageUseCount(weak.handle)).toBe(before - 1); // nobody but `weak` holds the values any more
    backward(edge, { gradTensors: [row([1, 10])] });
    expect(gradOf(x)).toEqual([3, 30]);
    expect(() => backward(edge, { gradTensors: [row([1, 1])] })).not.toThrow(); // a product with a number saves nothing
    expect(gradOf(x)).toEqual([6, 33]);
  }));

test('every kind of backward takes edges: the numbers of the tensors themselves', () =>
  leakFree(() => {
    const layer = new nn.Linear(3, 2, { dtype: float64 });
    const run = (how: (y: Tensor, x: Tensor) => void): number[][] =>
      scope(() => {
        for (const parameter of layer.parameters()) parameter.grad = null;
        const x = tensor([[1, 2, 3]], { dtype: float64, requiresGrad: true });
        how((layer.forward(x) as Tensor).tanh(), x);
        return [x, ...layer.parameters()].map((item) => item.grad?.flatten().toArray() as number[]);
      });
    const dy = tensor([[0.5, -2]], { dtype: float64 });
    const gone = (y: Tensor): GradientEdge => {
      const edge = getGradientEdge(y);
      y.dispose();
      return edge;
    };
    const expected = run((y) => backward(y, { gradTensors: [dy] }));
    expect(run((y) => backward([gone(y)], { gradTensors: [dy] }))).toEqual(expected);
    expect(run((y) => startBackward(gone(y), { gradTensors: [dy] }).finish())).toEqual(expected);
    expect(
      run((y, x) => backwardInputsFirst(gone(y), { gradTensors: [dy], inputs: [x], ready: () => undefined })),
    ).toEqual(expected);
    expect(
      run((y, x) => {
        const { inputGrads, weights } = inputBackward({
          outputs: [gone(y)],
          gradOutputs: [dy],
          inputs: [getGradientEdge(x)],
        });
        x.grad = inputGrads[0] ?? null;
        weights.run();
      }),
    ).toEqual(expected);
    layer.dispose();
  }));

test('grad stops at edges: of leaves, of what was computed, and of one output of several', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const y = x.mul(x);
    const loss = y.mul(5).sum();
    const [dx, dy] = grad(getGradientEdge(loss), [getGradientEdge(x), getGradientEdge(y)]);
    expect([dx?.toArray(), dy?.toArray()]).toEqual([
      [10, 20],
      [5, 5],
    ]);
    expect(x.grad).toBe(null);
    const [first, second] = callOp('aten::split.Tensor', [x, 1, 0]) as [Tensor, Tensor];
    const both = cat([first.mul(2), second.mul(7)]).sum();
    expect(grad(both, [getGradientEdge(second), getGradientEdge(first)]).map((item) => item.toArray())).toEqual([
      [7],
      [2],
    ]);
    const other = leaf([1]);
    expect(grad(x.sum(), [getGradientEdge(other)], { allowUnused: true })).toEqual([null]);
  }));

test('backward accumulates into the leaf of an edge only', () =>
  leakFree(() => {
    const [x, w] = [leaf([2]), leaf([3])];
    backward(x.mul(w), { inputs: [getGradientEdge(w)] });
    expect(gradOf(w)).toEqual([2]);
    expect(x.grad).toBe(null);
  }));

test('hooks of the tensor run although it is gone', () =>
  leakFree(() => {
    const x = leaf([1]);
    const y = x.mul(2);
    y.registerHook((g) => g.mul(10));
    const edge = getGradientEdge(y);
    y.dispose();
    backward(edge);
    expect(gradOf(x)).toEqual([20]);
  }));

test('edges are owned by scopes, and wrong ones are refused', () =>
  leakFree(() => {
    const x = leaf([1, 2]);
    const late = scope(() => {
      const edge = getGradientEdge(x.mul(2));
      return (): number[] => edge.shape;
    });
    expect(late).toThrow(/gradient edge was disposed of/);
    const kept = scope(() => keep(getGradientEdge(x.mul(2))));
    expect(kept.shape).toEqual([2]);
    expect(() => backward(kept)).toThrow('only a scalar needs no gradient');
    expect(() => backward(kept, { gradTensors: [row([1])] })).toThrow('they must be the same');
    expect(() => getGradientEdge(row([1]))).toThrow('does not require a gradient');
    expect(() => getGradientEdge(3 as unknown as Tensor)).toThrow('getGradientEdge: give a tensor');
    expect(() => new GradientEdge(kept.node, 1)).toThrow('MulBackward1 has 1 outputs, so there is no number 1');
    expect(() => new GradientEdge(kept.node, 0.5)).toThrow('outputNr is 0.5');
    expect(() => new GradientEdge(x as unknown as AutogradNode)).toThrow('give a node of the graph');
    expect(() => backward([kept, 3 as unknown as Tensor])).toThrow('tensors[1] is not a tensor but a number');
    const y = noGrad(() => x.mul(2));
    expect(() => getGradientEdge(y)).toThrow('does not require');
    kept.dispose();
    expect(() => backward(kept, { gradTensors: [row([1, 1])] })).toThrow(/gradient edge was disposed of/);
  }));
