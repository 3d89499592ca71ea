/** @file Choosing borders: equal cost, limits of memory, measured times; costs of operators. */
import { fc, test as propertyTest } from '@fast-check/vitest';
import { nn, randn, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Chain } from '../../testing/pipes.ts';
import { bytesOf, costOf, elementsOf } from '../graph/node-cost.ts';
import {
  cutBalanced,
  type Graph,
  GraphBuilder,
  type GraphNode,
  measureCosts,
  pipeline,
  splitGraph,
  traceModule,
} from '../index.ts';
import { type BalanceProblem, chooseBorders } from './balance.ts';

const problem = (costs: readonly number[], stages: number, more: Partial<BalanceProblem> = {}): BalanceProblem => ({
  stages,
  costs,
  memory: costs.map(() => 0),
  crossing: costs.map(() => 0),
  allowed: costs.map(() => true),
  ...more,
});

/** The longest stage for given borders. */
function longest({ costs }: BalanceProblem, borders: readonly number[]): number {
  const ends = [0, ...borders, costs.length];
  return Math.max(...ends.slice(1).map((end, i) => costs.slice(ends[i], end).reduce((a, b) => a + b, 0)));
}

/** All ways to choose borders. */
function* allBorders(count: number, borders: number, from = 1): Generator<number[]> {
  if (borders === 0) yield [];
  else
    for (let at = from; at < count; at++)
      for (const rest of allBorders(count, borders - 1, at + 1)) yield [at, ...rest];
}

describe('borders', () => {
  propertyTest.prop([
    fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 4, maxLength: 9 }),
    fc.integer({ min: 1, max: 4 }),
  ])('no other division has a shorter longest stage', (costs, stages) => {
    const one = problem(costs, stages);
    const best = Math.min(...[...allBorders(costs.length, stages - 1)].map((borders) => longest(one, borders)));
    const chosen = chooseBorders(one);
    expect(chosen.length).toBe(stages - 1);
    expect(longest(one, chosen)).toBe(best);
  });

  test('little is sent, memory fits, places are allowed', () => {
    expect(chooseBorders(problem([1, 1, 1, 1], 2, { crossing: [0, 0, 9e12, 0] }))).not.toEqual([2]);
    expect(chooseBorders(problem([1, 1, 1, 9], 2, { memory: [5, 5, 5, 5], memoryLimit: 10 }))).toEqual([2]);
    expect(chooseBorders(problem([1, 1, 1, 9], 2, { allowed: [true, true, false, false] }))).toEqual([1]);
    expect(() => chooseBorders(problem([1, 1], 2, { memory: [8, 8], memoryLimit: 4 }))).toThrow(/within 4 bytes/);
    expect(() => chooseBorders(problem([1, 1], 3))).toThrow(/at most 2 stages, not 3/);
  });
});

describe('cutBalanced', () => {
  const x = randn(2, 4);

  test('equal layers in equal numbers, at layers, or between any modules', () => {
    const { graph } = traceModule(new Chain(8), [x]);
    const counts = (stages: number): number[] =>
      splitGraph(cutBalanced(graph, stages)).stages.map(({ attributes }) => attributes.length / 2);
    expect(counts(2)).toEqual([4, 4]);
    expect(counts(4)).toEqual([2, 2, 2, 2]);
    expect(counts(8)).toEqual([1, 1, 1, 1, 1, 1, 1, 1]);
    expect(splitGraph(cutBalanced(graph, 12)).stages.length).toBe(12);
    expect(() => cutBalanced(graph, 12, { borders: 'layers' })).toThrow(/can be split into at most 8 stages, not 12/);
    expect(() => cutBalanced(graph, 0)).toThrow(/stages is 0/);
    expect(() => cutBalanced(graph, 2, { seconds: new Map(), limit: 3 } as never)).toThrow(/unknown option 'limit'/);
  });

  test('every layer is in exactly one stage, however uneven', () => {
    const { graph } = traceModule(new Chain(30), [x]);
    const layers = splitGraph(cutBalanced(graph, 4)).stages.map(({ attributes }) =>
      attributes.flatMap(({ target }) => /layers\.(\d+)\.fc\.weight/.exec(target)?.[1] ?? []).map(Number),
    );
    expect(layers.flat()).toEqual(Array.from({ length: 30 }, (_, i) => i));
    expect(layers.map((list) => list.length).sort()).toEqual([7, 7, 8, 8]);
  });

  test('by measured times', () => {
    class Slow extends nn.Module {
      layers = new nn.ModuleList([new nn.Linear(8, 8), new nn.Linear(8, 8), new nn.Linear(8, 8), new nn.Linear(8, 8)]);
      forward(y: Tensor): Tensor {
        let z = y;
        for (const layer of this.layers) z = layer.forward(z);
        return z;
      }
    }
    const program = traceModule(new Slow(), [randn(4, 8)]);
    const seconds = measureCosts(program, [randn(4, 8)], { rounds: 2 });
    const calls = program.graph.nodes.filter((node) => node.kind === 'call');
    expect([...seconds.keys()]).toEqual(calls.map((node) => node.name));
    expect([...seconds.values()].every((time) => time > 0)).toBe(true);
    // As if the last layer took as long as all others together.
    const uneven = new Map(calls.map((node, i) => [node.name, i === 3 ? 3 : 1]));
    const pipe = pipeline(program, { stages: 2, balance: { seconds: uneven } });
    expect(pipe.split.stages.map(({ attributes }) => attributes.length / 2)).toEqual([3, 1]);
  });

  test('within a limit of memory', () => {
    const program = traceModule(new Chain(4), [x]);
    const layer = 4 * (16 + 4) * 4; // float32, with gradients and optimizer state
    const first = new Map(program.graph.nodes.map((node) => [node.name, node.name === 'linear' ? 1000 : 1]));
    const sizes = (memoryLimit?: number): number[] =>
      pipeline(program, { stages: 2, balance: { seconds: first, memoryLimit } }).split.stages.map(
        ({ attributes }) => attributes.length / 2,
      );
    expect(sizes()).toEqual([1, 3]);
    expect(sizes(2 * layer)).toEqual([2, 2]);
    expect(() => sizes(layer)).toThrow(/no division into 2 stages/);
  });
});

test('costs are counted from shapes', () => {
  const meta = (...shape: (number | string)[]) => ({ dtype: 'float32', shape });
  expect(elementsOf([meta(2, 3), null, meta(4)])).toBe(10);
  expect(bytesOf({ dtype: 'int64', shape: [2, 's0'] }, new Map([['s0', 5]]))).toBe(80);
  expect(bytesOf({ dtype: 'bool', shape: ['2*s0 + 1'] }, new Map([['s0', 5]]))).toBe(11);
  expect(bytesOf(meta('unknown'))).toBe(32);
  const nodes = new Map<string, Pick<GraphNode, 'meta'>>([
    ['x', { meta: meta(2, 8, 4) }],
    ['w', { meta: meta(16, 4) }],
    ['k', { meta: meta(3, 4, 3, 3) }],
    ['i', { meta: meta(1, 4, 8, 8) }],
  ]);
  const flops = (op: string, args: readonly string[], shape: readonly number[]): number =>
    costOf({ kind: 'call', name: 'y', op, args: args.map((ref) => ({ ref })), meta: meta(...shape) }, nodes).flops;
  expect(flops('aten::linear', ['x', 'w'], [2, 8, 16])).toBe(2 * 2 * 8 * 16 * 4);
  expect(flops('aten::scaled_dot_product_attention', ['x', 'x', 'x'], [2, 8, 4])).toBe(4 * 2 * 8 * 4 * 8);
  expect(flops('aten::conv2d', ['i', 'k'], [1, 3, 6, 6])).toBe(2 * 3 * 36 * 4 * 9);
  expect(flops('aten::relu', ['x'], [2, 8, 4])).toBe(64);
  expect(flops('aten::view', ['x'], [64])).toBe(0);
});

test('branches cost what the dearer one costs, loops what all rounds cost', () => {
  const meta = (...shape: number[]): { meta: { dtype: string; shape: number[] } } => ({
    meta: { dtype: 'float32', shape },
  });
  const body = (products: number): Graph => {
    const g = new GraphBuilder();
    const [x, w] = [g.placeholder('y', meta(2, 4)), g.placeholder('v', meta(4, 4))];
    let z = x;
    for (let i = 0; i < products; i++) z = g.call('aten::mm', [z, w], meta(2, 4));
    g.output([z]);
    return g.build();
  };
  const g = new GraphBuilder();
  const [x, w, test] = [g.placeholder('x', meta(5, 2, 4)), g.placeholder('w', meta(4, 4)), g.placeholder('test')];
  g.call('higher_order::map_impl', [g.subgraph('body', body(3)), [x], [w]], { name: 'map' });
  g.call('higher_order::cond', [test, g.subgraph('yes', body(1)), g.subgraph('no', body(2)), [x, w]], { name: 'cond' });
  g.call('higher_order::invoke_subgraph', [g.subgraph('part', body(4)), 'part', x, w], { name: 'part' });
  g.output(w);
  const { nodes, graphs } = g.build();
  const known = new Map(nodes.map((node) => [node.name, node]));
  const flops = (name: string): number => costOf(known.get(name)!, known, undefined, graphs).flops;
  const product = 2 * 2 * 4 * 4;
  expect(['map', 'cond', 'part'].map(flops)).toEqual([5 * 3 * product, 2 * product, 4 * product]);
});
