/** @file Tests of trees: taking apart, putting together, paths, and shapes that travel as JSON. */
import { fc, test } from '@fast-check/vitest';
import { type Tensor, tensor } from '@pipewright/torch';
import { describe, expect } from 'vitest';
import {
  flatten,
  formatSpec,
  leafCount,
  leafPaths,
  mapTensors,
  sameSpec,
  type TreeSpec,
  tensorsIn,
  unflatten,
} from './tree.ts';

const key = fc.oneof(fc.string(), fc.constant('__proto__'), fc.constant('7'));
const { tree } = fc.letrec((tie) => ({
  tree: fc.oneof(
    { maxDepth: 4 },
    fc.oneof(fc.integer(), fc.string(), fc.constant(null), fc.constant(undefined), fc.boolean()),
    fc.array(tie('tree'), { maxLength: 4 }),
    fc
      .array(fc.tuple(key, tie('tree')), { maxLength: 4 })
      .map((entries) => Object.fromEntries(entries) as Record<string, unknown>),
    fc
      .array(fc.tuple(fc.oneof(fc.string(), fc.integer()), tie('tree')), { maxLength: 3 })
      .map((entries) => new Map(entries)),
  ),
}));

describe('flatten and unflatten', () => {
  test.prop([tree])('are each other’s reverse, also when the shape went through JSON', (value) => {
    const { leaves, spec } = flatten(value);
    const travelled = JSON.parse(JSON.stringify(spec)) as TreeSpec;
    expect(unflatten(travelled, leaves)).toEqual(value);
    expect(leafCount(spec)).toBe(leaves.length);
    expect(sameSpec(spec, travelled)).toBe(true);
    expect(leafPaths(spec)).toHaveLength(leaves.length);
    expect(new Set(leafPaths(spec)).size).toBe(leaves.length);
  });

  test('keep the order of keys, and take objects of classes as leaves', () => {
    class Mask {}
    const mask = new Mask();
    const x = tensor([1, 2]);
    const { leaves, spec } = flatten({ b: x, a: [mask, null], m: new Map([['k', 1]]) });
    expect(leaves).toEqual([x, mask, null, 1]);
    expect(leaves[0]).toBe(x);
    expect(formatSpec(spec)).toMatchInlineSnapshot(`"{b: *, a: [*, *], m: Map{k: *}}"`);
    expect(leafPaths(spec, 'args')).toEqual(['args.b', 'args.a[0]', 'args.a[1]', 'args.m.get("k")']);
  });

  test('a key named __proto__ is a key like any other', () => {
    const value = JSON.parse('{"__proto__": [1], "odd name": 2}') as object;
    const { leaves, spec } = flatten(value);
    const back = unflatten(spec, leaves) as object;
    expect(Object.keys(back)).toEqual(['__proto__', 'odd name']);
    expect(Object.getPrototypeOf(back)).toBe(Object.prototype);
    expect(leafPaths(spec)).toEqual(['.__proto__[0]', '["odd name"]']);
  });

  test('holes of arrays are leaves', () => {
    // oxlint-disable-next-line no-sparse-arrays
    expect(flatten([1, , 3]).leaves).toEqual([1, undefined, 3]);
  });

  test('a value that contains itself is refused', () => {
    const loop: unknown[] = [];
    loop.push(loop);
    expect(() => flatten(loop)).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: flatten: the value is nested more than 500 levels deep; does it contain itself?]`,
    );
  });

  test('keys of maps that cannot travel are refused, and so is a wrong number of leaves', () => {
    expect(() => flatten(new Map([[{}, 1]]))).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: flatten: a Map has the key [object Object]; use strings or numbers, which can be sent to other ranks]`,
    );
    expect(() => unflatten({ list: ['*', '*'] }, [1])).toThrowErrorMatchingInlineSnapshot(
      `[PipelineError: unflatten: the shape [*, *] has 2 leaves, but 1 were given; flatten a value of the same shape]`,
    );
  });
});

describe('tensors of a tree', () => {
  test('are found in order and replaced one by one', () => {
    const [a, b] = [tensor([1]), tensor([2])];
    const value = { a, rest: [3, b] };
    expect(tensorsIn(value)).toEqual([a, b]);
    const seen: Tensor[] = [];
    const result = mapTensors(value, (t) => {
      seen.push(t);
      return t.item();
    });
    expect(result).toEqual({ a: 1, rest: [3, 2] });
    expect(seen).toEqual([a, b]);
    expect(mapTensors('text', () => 0)).toBe('text');
    expect(mapTensors(a, () => 0)).toBe(0);
  });
});
