import { float32, liveTensors, nn, ones, scope, Tensor, tensor, zeros } from '@pipewright/torch';
import { describe, expect, it } from 'vitest';
import { type Graph, GraphBuilder, GraphModule } from '../index.ts';

const numbers = (x: unknown): unknown => (x as Tensor).toArray();

function linearGraph(): Graph {
  const g = new GraphBuilder();
  const x = g.placeholder('x', { meta: { dtype: 'float32', shape: ['s0', 2] } });
  const weight = g.attribute('fc.weight');
  const bias = g.attribute('fc.bias', { role: 'buffer', persistent: false });
  g.range('s0', { min: 0, max: 8 });
  g.output(g.call('aten::relu', [g.call('aten::linear', [x, weight, bias])]));
  return g.build();
}

const linear = (): GraphModule =>
  new GraphModule(
    linearGraph(),
    new Map([
      [
        'fc.weight',
        tensor(
          [
            [1, 2],
            [-3, -4],
          ],
          { dtype: float32 },
        ),
      ],
      ['fc.bias', tensor([0.5, 0.5])],
    ]),
  );

describe('GraphModule', () => {
  it('runs, trains and frees', () => {
    const model = linear();
    const before = liveTensors();
    scope(() => {
      const y = model.forward(ones([3, 2])) as Tensor;
      expect(y.toArray()).toEqual([
        [3.5, 0],
        [3.5, 0],
        [3.5, 0],
      ]);
      y.sum().backward();
      expect(numbers(model.getParameter('fc.weight').grad)).toEqual([
        [3, 3],
        [0, 0],
      ]);
    });
    expect(liveTensors()).toBe(before);
    scope(() => {
      expect(() => model.forward()).toThrow('GraphModule.forward: takes 1 arguments (#0), got 0');
      expect(() => model.forward(zeros([2, 2]), 1)).toThrow('takes 1 arguments (#0), got 2');
      expect(() => model.forward(zeros([2, 3]))).toThrow(/dimension 1 is 3, but the graph was made for 2/);
      expect(() => model.forward(zeros([9, 2]))).toThrow(
        /s0 \(dimension 0 of input 'x'\) is 9, but must be at least 0 and at most 8/,
      );
    });
    expect(liveTensors()).toBe(before);
  });

  it('takes sizes that say nothing certain of their symbols, such as those after strided layers', () => {
    const g = new GraphBuilder();
    const float = (shape: readonly string[]): { meta: { dtype: string; shape: readonly string[] } } => ({
      meta: { dtype: 'float32', shape },
    });
    const inputs = [['(s0 - 1)//8 + 1'], ['(s0 - 1)//4 + 1'], ['2*s0']].map((shape, i) =>
      g.placeholder(`x${i}`, float(shape)),
    );
    g.output(inputs.map((input) => g.call('aten::sum', [input])));
    const model = new GraphModule(g.build(), new Map());
    scope(() => {
      const call = (...sizes: number[]): unknown => model.forward(...sizes.map((size) => zeros([size])));
      expect(() => call(1, 2, 10)).not.toThrow();
      expect(() => call(4, 7, 52)).not.toThrow();
      expect(() => call(4, 7, 51)).toThrow("dimension 0 of input 'x2' is 51, which 2*s0 is for no whole s0");
      expect(() => call(5, 7, 52)).toThrow(
        "dimension 0 of input 'x0' is 5, but must be (s0 - 1)//8 + 1, which is 4 (s0 = 26)",
      );
    });
  });

  it('has the names of the original model', () => {
    const model = linear();
    expect([...model.stateDict().keys()]).toEqual(['fc.weight']);
    expect(model.namedBuffers().map(([name]) => name)).toEqual(['fc.bias']);
    model.loadStateDict(new Map([['fc.weight', zeros([2, 2])]]));
    expect(numbers(model.forward(ones([1, 2])))).toEqual([[0.5, 0.5]]);
    expect(model.getSubmodule('fc')).toBeInstanceOf(nn.Module);
    expect(() => model.getSubmodule('fc').forward()).toThrow(/is a part of a GraphModule/);
    expect(String(model)).toMatchInlineSnapshot(`
      "GraphModule(
        2 operations
        (fc): Module()
      )"
    `);
  });

  it('can be copied', () => {
    const model = linear();
    const copy = model.clone();
    scope(() => copy.getParameter('fc.weight').setData(zeros([2, 2])));
    expect(numbers(copy.forward(ones([1, 2])))).toEqual([[0.5, 0.5]]);
    expect(numbers(model.forward(ones([1, 2])))).toEqual([[3.5, 0]]);
    expect(copy.train(false).training).toBe(false);
  });
});
