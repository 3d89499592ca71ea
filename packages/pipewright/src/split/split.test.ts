/** @file Splitting graphs that were not traced here: changes in place, regions, values computed again. */
import { arange, float64, manualSeed, nn, noGrad, ones, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { expectEqual } from '../../testing/pipes.ts';
import { flattenRegions, nestRegions } from '../graph/regions.ts';
import {
  type Graph,
  GraphBuilder,
  GraphModule,
  pipeline,
  pipeSplit,
  pipeSplitOp,
  splitGraph,
  traceModule,
} from '../index.ts';

/** As exported by others: a change in place is a node like any other, and later uses may name the tensor or its views. */
function changing(marks: readonly number[]): Graph {
  const g = new GraphBuilder();
  const meta = { dtype: 'float64', shape: [4, 8], stride: [8, 1] };
  const x = g.placeholder('x', { meta });
  const weight = g.attribute('w', { meta: { dtype: 'float64', shape: [8, 8] } });
  let step = 0;
  const mark = (): void => {
    if (marks.includes(step++)) g.call(pipeSplitOp, []);
  };
  const y = g.call('aten::mm', [x, weight], { meta });
  const flat = g.call('aten::reshape', [y, [-1]], { meta: { dtype: 'float64', shape: [32], stride: [1] } });
  const row = g.call('aten::select.int', [y, 0, 0], { meta: { dtype: 'float64', shape: [8], stride: [1] } });
  mark();
  g.call('aten::mul_.Tensor', [y, 2], { meta });
  mark();
  g.call('aten::add_.Tensor', [row, 1]);
  mark();
  const left = g.call('aten::narrow', [y, 1, 0, 4]);
  mark();
  g.call('aten::mul_.Tensor', [y, 3], { meta });
  mark();
  const sum = g.call('aten::add.Tensor', [
    g.call('aten::sum', [flat]),
    g.call('aten::sum', [g.call('aten::exp', [left])]),
  ]);
  g.output([g.call('aten::mul.Tensor', [sum, g.call('aten::sum', [row])]), y]);
  return g.build();
}

function behaviour(of: { forward(...args: unknown[]): unknown }, weight: nn.Parameter, x: Tensor): unknown {
  return scope(() => {
    weight.grad = null;
    const [sum, y] = of.forward(x) as [Tensor, Tensor];
    sum.add(y.square().sum()).backward();
    const { grad } = weight as { grad: Tensor | null };
    return [sum.item(), y.detach().toArray(), grad?.toArray()];
  });
}

describe('changes in place', () => {
  manualSeed(0);
  const weight = new nn.Parameter(randn(8, 8, { dtype: float64 }).mul(0.1));
  const x = randn(4, 8, { dtype: float64 });
  const state = new Map([['w', weight]]);
  const want = behaviour(new GraphModule(changing([]), state), weight, x);
  // Every choice of five borders.
  const choices = Array.from({ length: 32 }, (_, bits) => [0, 1, 2, 3, 4].filter((i) => (bits >> i) % 2 === 1));

  test.each(choices.map((marks) => ({ marks })))('are seen by later stages, borders at $marks', ({ marks }) => {
    const pipe = pipeline({ graph: changing(marks), state }, {});
    const useless = marks.includes(2) && marks.includes(3) ? 1 : 0; // the view made between them is made again later
    expect(pipe.numStages).toBe(marks.length + 1 - useless);
    expect(behaviour(pipe as never, weight, x)).toEqual(want);
  });
});

test('regions laid flat and put together are the same', () => {
  class Regions extends nn.Module {
    fc = new nn.Linear(4, 4);
    forward(y: Tensor): unknown {
      const [a, b] = noGrad(() => [this.fc.forward(y), y.exp()] as const);
      const c = this.fc.forward(a.mul(b));
      return [c, noGrad(() => c.sum()), a];
    }
  }
  const { graph } = traceModule(new Regions(), [ones([2, 4])]);
  expect(Object.keys(graph.graphs ?? {}).length).toBe(2);
  const again = nestRegions(flattenRegions(graph));
  expect({ ...graph, ...again }).toEqual(graph);
});

describe('values that several stages use', () => {
  class Masked extends nn.Module {
    layers = new nn.ModuleList([new nn.Linear(4, 4), new nn.Linear(4, 4), new nn.Linear(4, 4)]);
    forward(y: Tensor): Tensor {
      const [b] = y.shape as [number];
      const table = arange(4, { dtype: float64 }).mul(0.3).cos().expand(b, 4);
      const scale = this.layers.at(0).weight.sum().mul(0.1);
      let z = y;
      for (const layer of this.layers) {
        z = (layer as nn.Linear).forward(z).mul(table).mul(scale);
        pipeSplit();
      }
      return z;
    }
  }
  const model = new Masked().double();
  const x = randn(3, 4, { dtype: float64 });
  const inputs = (shared: 'send' | 'recompute' | 'auto'): string[][] => {
    const pipe = expectEqual(model, [x], { shared });
    return pipe.split.stages.map((part) => part.inputs.map(({ name }) => name));
  };

  test('are sent, or computed again where that needs no parameter', () => {
    expect(inputs('send')).toEqual(
      [['x'], ['mul_3', 'expand', 'mul_1'], ['mul_5', 'expand', 'mul_1']].map((list) =>
        list.map((name) => (name === 'x' ? 'y' : name)),
      ),
    );
    expect(inputs('recompute')).toEqual([['y'], ['mul_3', 'mul_1'], ['mul_5', 'mul_1']]);
    expect(inputs('auto')).toEqual(inputs('recompute'));
  });
});

test('splitGraph refuses what it does not know', () => {
  const { graph } = traceModule(new nn.Linear(2, 2), [ones([1, 2])]);
  expect(() => splitGraph(graph, { share: 'send' } as never)).toThrow(/unknown option 'share' \(did you mean 'shared'/);
  expect(() => splitGraph(graph, { shared: 'both' as never })).toThrow(/shared is 'both'/);
  expect(() => splitGraph({ nodes: [] })).toThrow(/the graph is not sound/);
});
