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

describe('branches and loops', () => {
  const meta = { dtype: 'float64', shape: [3, 4] };
  /** A graph of one input and what `body` adds. */
  const inner = (body: (g: GraphBuilder, x: { ref: string }) => { ref: string }): Graph => {
    const g = new GraphBuilder();
    g.output([body(g, g.placeholder('y', { meta }))]);
    return g.build();
  };
  /** Two branches of the same name, one of them inside a region, with borders around them. */
  function branching(marks: boolean): Graph {
    const mark = (g: GraphBuilder): void => {
      if (marks) g.call(pipeSplitOp, []);
    };
    const branch = (g: GraphBuilder, x: { ref: string }, factor: number): { ref: string } => {
      const test = g.call('aten::gt.Scalar', [g.call('aten::sum', [x]), 0], { meta: { dtype: 'bool', shape: [] } });
      const yes = g.subgraph(
        'branch',
        inner((b, y) => b.call('aten::mul.Tensor', [y, factor], { meta })),
      );
      const no = g.subgraph(
        'branch',
        inner((b, y) => b.call('aten::sub.Tensor', [y, factor], { meta })),
      );
      const list = g.call('higher_order::cond', [test, yes, no, [x]], { meta: [meta] });
      return g.element(list, 0, { meta });
    };
    const g = new GraphBuilder();
    const x = g.placeholder('x', { meta });
    const weight = g.attribute('w', { meta: { dtype: 'float64', shape: [4, 4] } });
    let y = g.call('aten::mm', [x, weight], { meta });
    mark(g);
    y = branch(g, y, 2);
    mark(g);
    const region = inner((b, z) => branch(b, b.call('aten::neg', [z], { meta }), 3));
    const without = g.call('higher_order::wrap_with_set_grad_enabled', [false, g.subgraph('body', region), y], {
      meta: [meta],
    });
    y = g.call('aten::mul.Tensor', [g.element(without, 0, { meta }), y], { meta });
    mark(g);
    g.output([g.call('aten::sum', [y]), y]);
    return g.build();
  }

  test.each([1, -1])('stay with their sub-graphs in the stages they fall into, sign %i', (sign) => {
    manualSeed(0);
    const weight = new nn.Parameter(randn(4, 4, { dtype: float64 }).abs());
    const x = randn(3, 4, { dtype: float64 }).abs().mul(sign);
    const state = new Map([['w', weight]]);
    const want = behaviour(new GraphModule(branching(false), state), weight, x);
    const pipe = pipeline({ graph: branching(true), state });
    expect(pipe.split.stages.map(({ graph }) => Object.keys(graph.graphs ?? {}))).toEqual([
      [],
      ['branch', 'branch_1'],
      ['body'],
      [],
    ]);
    expect(behaviour(pipe as never, weight, x)).toEqual(want);
  });

  test('are not computed again: they may draw random numbers', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x', { meta });
    const weight = g.attribute('w', { meta: { dtype: 'float64', shape: [4, 4] } });
    const dropped = inner((b, y) => b.call('aten::dropout', [y, { float: 0.5 }, true], { meta }));
    const kept = inner((_, y) => y);
    const test = g.call('aten::gt.Scalar', [g.call('aten::sum', [x]), 0], { meta: { dtype: 'bool', shape: [] } });
    const args = [test, g.subgraph('yes', dropped), g.subgraph('no', kept), [x]];
    const y = g.element(g.call('higher_order::cond', args, { meta: [meta] }), 0, { meta });
    g.call(pipeSplitOp, []);
    const z = g.call('aten::mm', [y, weight], { meta });
    g.call(pipeSplitOp, []);
    g.output(g.call('aten::mul.Tensor', [z, y], { meta }));
    const { stages } = splitGraph(g.build(), { shared: 'recompute' });
    expect(stages.map(({ inputs }) => inputs.map(({ name }) => name))).toEqual([['x'], ['getitem'], ['mm', 'getitem']]);
  });
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
