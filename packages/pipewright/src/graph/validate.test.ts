/** @file Every rule of graphs: the smallest graph that breaks it, and what is said. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { checkGraph, type Graph, GraphBuilder, validateGraph } from '../index.ts';

const x = { kind: 'placeholder', name: 'x' };
const out = (value: unknown = { ref: 'x' }): object => ({ kind: 'output', name: 'output', value });
const graph = (...nodes: object[]): object => ({ nodes });
const call = (name: string, ...args: unknown[]): object => ({ kind: 'call', name, op: 'aten::relu', args });

const broken: readonly (readonly [rule: string, text: RegExp, graph: unknown])[] = [
  ['shape', /^graph: a graph is/, 7],
  ['shape', /unknown field 'node'/, { nodes: [x, out()], node: 1 }],
  ['shape', /graphs is an object/, { nodes: [x, out()], graphs: [] }],
  ['shape', /^node 0: a node is an object/, graph('x' as never, out(1))],
  ['shape', /^x: unknown kind "plceholder"; there are placeholder/, graph({ kind: 'plceholder', name: 'x' }, out(1))],
  ['shape', /^x: unknown field 'mta'/, graph({ ...x, mta: 1 }, out())],
  ['shape', /args is a list/, graph(x, { kind: 'call', name: 'y', op: 'aten::relu' }, out())],
  ['shape', /kwargs is an object/, graph(x, { ...call('y'), kwargs: [] }, out())],
  ['shape', /0.5 is not a whole number; write \{ float: 0.5 \}/, graph(x, call('y', 0.5), out())],
  ['shape', /an argument has one key, got \["ref","float"\]/, graph(x, call('y', { ref: 'x', float: 1 }), out())],
  ['shape', /unknown argument \{ flaot \}/, graph(x, call('y', { flaot: 1 }), out())],
  ['shape', /float is a number, 'inf'/, graph(x, call('y', { float: 'big' }), out())],
  ['shape', /int is the digits/, graph(x, call('y', { int: '1e5' }), out())],
  ['shape', /complex is two numbers/, graph(x, call('y', { complex: [1] }), out())],
  ['shape', /dtype is a string/, graph(x, call('y', { dtype: 6 }), out())],
  ['shape', /dict is an object/, graph(x, call('y', { dict: [] }), out())],
  ['shape', /an output has a value/, graph(x, { kind: 'output', name: 'output' })],
  ['shape', /the dtype of a tensor is a string/, graph({ ...x, meta: { shape: [] } }, out())],
  [
    'shape',
    /a stride has one entry per dimension/,
    graph({ ...x, meta: { dtype: 'f', shape: [2], stride: [] } }, out()),
  ],
  ['shape', /modules is a list of/, graph({ ...x, modules: [{ path: 'a' }] }, out())],
  ['shape', /scalar is 'int'/, graph({ ...x, meta: { scalar: 'number' } }, out())],
  ['name', /^node 0: a node has a name/, graph({ kind: 'placeholder' }, out(1))],
  ['name', /"a b" is not a name/, graph({ kind: 'placeholder', name: 'a b' }, out(1))],
  ['name', /"__proto__" is not a name/, graph({ kind: 'placeholder', name: '__proto__' }, out(1))],
  ['name', /^x: another node has this name/, graph(x, x, out())],
  ['order', /^graph: the last node is the output/, graph(x)],
  ['order', /^output: the output is the last node/, graph(x, out(), { ...out(), name: 'again' })],
  ['order', /^late: placeholders come before/, graph(x, call('y'), { kind: 'placeholder', name: 'late' }, out())],
  ['defined', /^y: uses 'z', which no earlier node makes/, graph(x, call('y', { ref: 'z' }), call('z'), out())],
  ['defined', /^y: uses 'y'/, graph(x, call('y', [{ dict: { k: { ref: 'y' } } }]), out())],
  ['target', /an operator is written 'aten::add.Tensor', got "relu"/, graph(x, { ...call('y'), op: 'relu' }, out())],
  [
    'target',
    /"a..b" is not the path of a module/,
    graph(x, { kind: 'module', name: 'm', target: 'a..b', args: [] }, out()),
  ],
  ['target', /null is not the path/, graph(x, { kind: 'attribute', name: 'w', role: 'buffer', target: null }, out())],
  [
    'element',
    /an index is a whole number/,
    graph(x, { kind: 'element', name: 'e', of: { ref: 'x' }, index: -1 }, out()),
  ],
  [
    'element',
    /element 2 of 'y', which has 1/,
    graph(x, { ...call('y'), meta: [null] }, { kind: 'element', name: 'e', of: { ref: 'y' }, index: 2 }, out()),
  ],
  ['attribute', /role is 'parameter' or 'buffer'/, graph(x, { kind: 'attribute', name: 'w', target: 'w' }, out())],
  [
    'attribute',
    /'w' is a parameter elsewhere, a buffer that is not persistent here/,
    graph(
      x,
      { kind: 'attribute', name: 'w', target: 'w', role: 'parameter' },
      { kind: 'attribute', name: 'v', target: 'w', role: 'buffer', persistent: false },
      out(),
    ),
  ],
  ['subgraph', /there is no sub-graph 'body'/, graph(x, call('y', { graph: 'body' }), out())],
  ['defined', /^body\/y: uses 'x'/, { ...graph(x, out()), graphs: { body: graph(call('y', { ref: 'x' }), out(1)) } }],
  ['signature', /placeholder 'x' does not occur/, { ...graph(x, out()), signature: { args: [], kwargs: {} } }],
  [
    'signature',
    /placeholder 'x' stands twice/,
    { ...graph(x, out()), signature: { args: [{ ref: 'x' }], kwargs: { k: { ref: 'x' } } } },
  ],
  [
    'signature',
    /'y' is not a placeholder/,
    { ...graph(x, call('y'), out()), signature: { args: [{ ref: 'x' }, { ref: 'y' }], kwargs: {} } },
  ],
  ['range', /'s0' lies between 3 and 2/, { ...graph(x, out()), ranges: { s0: { min: 3, max: 2 } } }],
  [
    'range',
    /the bounds of 's0' are whole numbers or null/,
    { ...graph(x, out()), ranges: { s0: { min: 0.5, max: null } } },
  ],
  ['range', /strict of 's0' is true/, { ...graph(x, out()), ranges: { s0: { min: 2, max: null, strict: 1 } } }],
  ['shape', /traced is \{ fixedBecause: a text or null \}/, { ...graph(x, out()), traced: { fixedBecause: 1 } }],
];

describe('validateGraph', () => {
  it.each(broken)('%s: %s', (rule, text, value) => {
    const found = validateGraph(value);
    expect(found.map((violation) => violation.rule)).toContain(rule);
    expect(found.map(({ node, message }) => `${node}: ${message}`).join('\n')).toMatch(new RegExp(text.source, 'm'));
  });

  it('says all at once', () => {
    expect(() => checkGraph(graph(x, x, call('y', { ref: 'z' })), 'test')).toThrowErrorMatchingInlineSnapshot(`
      [PipelineError: test: the graph is not sound
        x: another node has this name [name]
        y: uses 'z', which no earlier node makes [defined]
        graph: the last node is the output [order]]
    `);
  });

  it('has an answer to any JSON', () => {
    const names = fc.constantFrom('x', 'y', 'z', '', 'a.b');
    const leaf = fc.oneof(fc.jsonValue({ maxDepth: 2 }), names, fc.record({ ref: names }), fc.record({ graph: names }));
    const node = fc.record(
      {
        kind: fc.constantFrom('placeholder', 'attribute', 'call', 'module', 'element', 'output', 'other'),
        name: fc.oneof(names, leaf),
        op: fc.oneof(fc.constantFrom('aten::relu', 'x'), leaf),
        args: fc.oneof(fc.array(leaf, { maxLength: 3 }), leaf),
        kwargs: leaf,
        target: fc.oneof(names, leaf),
        role: fc.oneof(fc.constantFrom('parameter', 'buffer'), leaf),
        of: leaf,
        index: leaf,
        value: leaf,
        meta: leaf,
        modules: leaf,
      },
      { requiredKeys: [] },
    );
    const any = fc.record(
      {
        nodes: fc.oneof(fc.array(fc.oneof(node, leaf), { maxLength: 5 }), leaf),
        graphs: leaf,
        ranges: leaf,
        signature: leaf,
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(any, (value) => {
        for (const { node: where, rule, message } of validateGraph(value))
          expect([typeof where, typeof rule, typeof message]).toEqual(['string', 'string', 'string']);
      }),
      { numRuns: 500 },
    );
  });
});

describe('GraphBuilder', () => {
  it('makes names unique and refuses what comes after the output', () => {
    const g = new GraphBuilder();
    const a = g.placeholder('x');
    const names = [g.call('aten::relu', [a]), g.call('aten::relu', [a]), g.call('aten::relu', [a], { name: 'relu_1' })];
    expect(names).toEqual([{ ref: 'relu' }, { ref: 'relu_1' }, { ref: 'relu_1_1' }]);
    expect([g.subgraph('body', graphOf()), g.subgraph('body', graphOf())]).toEqual([
      { graph: 'body' },
      { graph: 'body_1' },
    ]);
    g.output(a);
    expect(() => g.call('aten::relu', [a])).toThrow("node 'relu_2' comes after the output");
    expect(Object.keys(g.build().graphs ?? {})).toEqual(['body', 'body_1']);
  });

  it('checks what it built', () => {
    const g = new GraphBuilder();
    g.output({ ref: 'x' });
    expect(() => g.build()).toThrow(/GraphBuilder.build: the graph is not sound\n {2}output: uses 'x'/);
  });
});

function graphOf(): Graph {
  const g = new GraphBuilder();
  g.output(g.placeholder('x'));
  return g.build();
}
