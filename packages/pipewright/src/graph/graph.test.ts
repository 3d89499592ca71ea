import { describe, expect, it } from 'vitest';
import { formatGraph, type Graph, GraphBuilder, inputsOf, mapReferences, usersOf, validateGraph } from '../index.ts';

function sample(): Graph {
  const g = new GraphBuilder();
  const x = g.placeholder('x', { meta: { dtype: 'float32', shape: ['s0', 4] } });
  const weight = g.attribute('fc.weight', { meta: { dtype: 'float32', shape: [4, 4] } });
  const mask = g.attribute('mask', { role: 'buffer', persistent: false });
  const modules = [
    { path: '', type: 'Net' },
    { path: 'fc', type: 'Linear' },
  ];
  const y = g.call('aten::linear', [x, weight], { modules, meta: { dtype: 'float32', shape: ['s0', 4] } });
  const z = g.call('aten::add.Tensor', [y, mask], { kwargs: { alpha: { float: 2 } } });
  const parts = g.call('aten::split.Tensor', [z, 2, -1], {
    meta: [
      { dtype: 'float32', shape: ['s0', 2] },
      { dtype: 'float32', shape: ['s0', 2] },
    ],
  });
  const first = g.element(parts, 0);
  const second = g.element(parts, 1);
  const sum = g.call('aten::add.Tensor', [first, second]);
  g.range('s0', { min: 1, max: 8 });
  g.output({ dict: { sum, pair: [first, x], none: null } });
  return g.build();
}

describe('a graph', () => {
  it('prints', () => {
    expect(formatGraph(sample())).toMatchInlineSnapshot(`
      "graph(%x: float32[s0, 4]) where 1 <= s0 <= 8
        %fc_weight: float32[4, 4] = parameter fc.weight
        %mask = buffer mask
        %linear: float32[s0, 4] = aten::linear(%x, %fc_weight)  # fc
        %add = aten::add.Tensor(%linear, %mask, alpha=2.0)
        %split: (float32[s0, 2], float32[s0, 2]) = aten::split.Tensor(%add, 2, -1)
        %getitem = %split[0]
        %getitem_1 = %split[1]
        %add_1 = aten::add.Tensor(%getitem, %getitem_1)
        return {sum: %add_1, pair: [%getitem, %x], none: null}"
    `);
  });

  it('is JSON', () => {
    expect(JSON.parse(JSON.stringify(sample()))).toEqual(sample());
    expect(structuredClone(sample())).toEqual(sample());
  });

  it('knows inputs and users', () => {
    const graph = sample();
    expect(inputsOf(graph.nodes.at(-1)!)).toEqual(['add_1', 'getitem', 'x']);
    expect(usersOf(graph).get('split')).toEqual(['getitem', 'getitem_1']);
    expect(mapReferences([{ ref: 'a' }, { dict: { k: { ref: 'b' } } }, 3], ({ ref }) => ({ ref: `${ref}!` }))).toEqual([
      { ref: 'a!' },
      { dict: { k: { ref: 'b!' } } },
      3,
    ]);
  });

  it('is sound', () => {
    expect(validateGraph(sample())).toEqual([]);
  });
});
