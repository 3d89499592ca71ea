/** @file What operators do, compared with what the engine's schemas and the tensors themselves say. */
import { callOp, listOps, ones, randn, scope, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { changedBy, isRandom, isView, mayCopy, memoryOf, viewedBy } from './effects.ts';
import type { CallNode, GraphNode } from './graph.ts';

const call = (op: string, args: CallNode['args'], name = 'y', kwargs?: CallNode['kwargs']): CallNode => ({
  kind: 'call',
  name,
  op,
  args,
  ...(kwargs === undefined ? {} : { kwargs }),
});

test('views of a whole tensor share its memory, and what is no view does not', () => {
  const args: Record<string, unknown[]> = {
    'aten::t': [],
    'aten::view': [[3, 4]],
    'aten::_unsafe_view': [[3, 4]],
    'aten::permute': [[1, 0]],
    'aten::select.int': [0, 1],
    'aten::slice.Tensor': [0, 0, 2],
    'aten::unsqueeze': [0],
    'aten::detach': [],
    'aten::relu': [],
    'aten::neg': [],
    'aten::clone': [],
    'aten::mul.Scalar': [2],
    'aten::dropout': [0.5, true],
  };
  for (const [op, rest] of Object.entries(args))
    scope(() => {
      const x = randn(4, 3);
      const y = callOp(op, [x, ...rest]) as Tensor;
      x.fill_(1e6); // a view sees it
      const shares = y.max().item() === 1e6;
      expect({ op, shares }).toEqual({ op, shares: isView(op) });
    });
});

test('operators that may copy give back a view of a tensor that lies in order, and a copy of one that does not', () => {
  scope(() => {
    const x = ones([4, 3]);
    for (const [op, args] of [
      ['aten::reshape', [[12]]],
      ['aten::flatten.using_ints', []],
      ['aten::contiguous', []],
    ] as const) {
      expect(isView(op) && mayCopy(op)).toBe(true);
      const shares = [x, x.t()].map((given) => {
        given.fill_(1);
        const y = callOp(op, [given, ...args]) as Tensor;
        given.fill_(2);
        return y.max().item() === 2;
      });
      expect({ op, shares }).toEqual({ op, shares: [true, false] });
    }
  });
});

test('random operators are those that give other numbers at every call', () => {
  scope(() => {
    const x = ones([64]);
    const args: Record<string, unknown[]> = {
      'aten::dropout': [x, 0.5, true],
      'aten::alpha_dropout': [x, 0.5, true],
      'aten::bernoulli.p': [x, 0.5],
      'aten::rand_like': [x],
      'aten::randn': [[64]],
      'aten::normal.float_float': [0, 1, [64]],
      'aten::multinomial': [x, 32],
      'aten::rrelu': [x.neg(), 0.1, 0.9, true],
      'aten::relu': [x],
      'aten::softmax.int': [x, 0],
      'aten::native_layer_norm': [x, [64], null, null, 1e-5],
    };
    for (const [op, given] of Object.entries(args)) {
      const [a, b] = [0, 1].map(() => [callOp(op, given)].flat()[0] as Tensor) as [Tensor, Tensor];
      expect({ op, differs: !a.equal(b) }).toEqual({ op, differs: isRandom(op) });
    }
  });
  for (const op of ['scaled_dot_product_attention', 'native_dropout', 'feature_dropout', 'poisson', 'randperm'])
    expect(isRandom(`aten::${op}`), op).toBe(true);
});

test('changes in place are found for every operator whose name ends in an underscore, by position and by name', () => {
  const named = listOps().filter(({ name }) => /^aten::[a-z]\w*[a-z]_$/.test(name));
  expect(named.length).toBeGreaterThan(150);
  for (const { name, overload, args } of named) {
    if (args[0]?.type !== 'Tensor') continue;
    const op = overload === '' ? name : `${name}.${overload}`;
    expect({ op, changed: changedBy(call(op, [{ ref: 'x' }])) }).toEqual({ op, changed: args[0].written ? ['x'] : [] });
  }
  expect(changedBy(call('aten::add.out', [{ ref: 'a' }, { ref: 'b' }], 'y', { out: { ref: 'c' } }))).toEqual(['c']);
  expect(changedBy(call('aten::no_such_operator', [{ ref: 'x' }]))).toEqual([]);
});

test('the memory of a value is found through views, elements of lists and changes', () => {
  const nodes: GraphNode[] = [
    { kind: 'placeholder', name: 'x' },
    call('aten::split.Tensor', [{ ref: 'x' }, 2], 'parts'),
    { kind: 'element', name: 'part', of: { ref: 'parts' }, index: 1 },
    call('aten::relu_', [{ ref: 'part' }], 'changed'),
    call('aten::t', [{ ref: 'changed' }], 'turned'),
    call('aten::neg', [{ ref: 'turned' }], 'own'),
  ];
  const byName = new Map(nodes.map((node) => [node.name, node]));
  expect(viewedBy(byName.get('part')!, byName)).toBe('x');
  expect(memoryOf('turned', byName)).toBe('x');
  expect(memoryOf('own', byName)).toBe('own');
});
