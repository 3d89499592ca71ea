/**
 * @file Trees: values in arrays, plain objects and maps, nested. Everything else is a leaf: tensors, numbers, null,
 * objects of classes. A tree's shape is plain JSON, so it can travel in the header of a message.
 */
import { Tensor } from '@pipewright/torch';
import { isPlainObject } from '@pipewright/torch/internal';
import { PipelineError } from './errors.ts';

export { isPlainObject, mapTensors, tensorsIn } from '@pipewright/torch/internal';

/** The shape of a tree without its leaves: `'*'` is a leaf. Plain JSON. */
export type TreeSpec =
  | '*'
  | { readonly list: readonly TreeSpec[] }
  | { readonly keys: readonly string[]; readonly items: readonly TreeSpec[] }
  | { readonly mapKeys: readonly (string | number)[]; readonly items: readonly TreeSpec[] };

/** A tree taken apart. */
export interface FlatTree {
  readonly leaves: unknown[];
  readonly spec: TreeSpec;
}

/** How deep trees may be nested; deeper ones most likely contain themselves. */
const MAX_DEPTH = 500;

/**
 * Takes a tree apart into its leaves, in order, and its shape.
 *
 * @example flatten({ a: x, b: [y, 3] }) // { leaves: [x, y, 3], spec: { keys: ['a', 'b'], items: ['*', { list: ['*', '*'] }] } }
 */
export function flatten(value: unknown): FlatTree {
  const leaves: unknown[] = [];
  return { leaves, spec: collect(value, leaves, 0) };
}

/**
 * Puts leaves into a shape: the reverse of `flatten`.
 *
 * @example unflatten({ list: ['*', '*'] }, [1, 2]) // [1, 2]
 */
export function unflatten(spec: TreeSpec, leaves: readonly unknown[]): unknown {
  if (!Array.isArray(leaves)) throw badTree('unflatten', 'the second argument is no array of leaves');
  const count = leafCount(spec);
  if (count !== leaves.length)
    throw new PipelineError(
      'TREE_MISMATCH',
      `unflatten: the shape ${formatSpec(spec)} has ${count} leaves, but ${leaves.length} were given; flatten a value of the same shape`,
    );
  let next = 0;
  const build = (part: TreeSpec): unknown => {
    if (part === '*') return leaves[next++];
    if ('list' in part) return part.list.map(build);
    const items = part.items.map(build);
    if ('mapKeys' in part) return new Map(part.mapKeys.map((key, i) => [key, items[i]]));
    return Object.fromEntries(part.keys.map((key, i) => [key, items[i]]));
  };
  return build(spec);
}

/** Number of leaves of a shape. @example leafCount({ list: ['*', '*'] }) // 2 */
export function leafCount(spec: TreeSpec): number {
  if (spec === '*') return 1;
  let sum = 0;
  for (const item of childrenOf(spec)) sum += leafCount(item);
  return sum;
}

/** Whether two shapes are the same, names and their order included. @example sameSpec('*', { list: ['*'] }) // false */
export function sameSpec(a: TreeSpec, b: TreeSpec): boolean {
  return a === b || (leafCount(a) === leafCount(b) && JSON.stringify(a) === JSON.stringify(b));
}

/**
 * Where each leaf is, as one would write it in code; a tree that is one leaf has the empty path.
 *
 * @example leafPaths(flatten({ a: 1, b: [2, 3] }).spec) // ['.a', '.b[0]', '.b[1]']
 */
export function leafPaths(spec: TreeSpec, prefix = ''): string[] {
  if (spec === '*') return [prefix];
  const step = (i: number): string => {
    if ('list' in spec) return `[${i}]`;
    if ('mapKeys' in spec) return `.get(${JSON.stringify(spec.mapKeys[i])})`;
    const key = spec.keys[i]!;
    return /^[A-Za-z_$][\w$]*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
  };
  const children = childrenOf(spec);
  return children.flatMap((item, i) => leafPaths(item, `${prefix}${step(i)}`));
}

/** A shape in short, for messages. @example formatSpec(flatten({ a: 1, b: [2, 3] }).spec) // '{a: *, b: [*, *]}' */
export function formatSpec(spec: TreeSpec): string {
  if (spec === '*') return '*';
  childrenOf(spec);
  if ('list' in spec) return `[${spec.list.map(formatSpec).join(', ')}]`;
  const items = spec.items.map(formatSpec);
  const isMap = 'mapKeys' in spec;
  const pairs = (isMap ? spec.mapKeys : spec.keys).map((key, i) => `${key}: ${items[i]}`);
  return `${isMap ? 'Map' : ''}{${pairs.join(', ')}}`;
}

function badTree(where: string, what: string): PipelineError {
  return new PipelineError('TREE_MISMATCH', `${where}: ${what}; give what flatten returns: { leaves, spec }`);
}

function childrenOf(spec: Exclude<TreeSpec, '*'>): readonly TreeSpec[] {
  const isSpec = typeof (spec as unknown) === 'object' && spec !== null && ('list' in spec || 'items' in spec);
  if (!isSpec) throw badTree('tree', 'a shape is something else than a list, an object or a leaf');
  return 'list' in spec ? spec.list : spec.items;
}

function collect(value: unknown, leaves: unknown[], depth: number): TreeSpec {
  if (typeof value !== 'object' || value === null || value instanceof Tensor) return leaf(value, leaves);
  if (depth > MAX_DEPTH)
    throw new PipelineError(
      'TREE_DEPTH',
      `flatten: the value is nested more than ${MAX_DEPTH} levels deep; does it contain itself?`,
    );
  if (Array.isArray(value)) {
    const list = new Array<TreeSpec>(value.length);
    for (let i = 0; i < value.length; i++) list[i] = collect(value[i], leaves, depth + 1);
    return { list };
  }
  if (value instanceof Map) return collectMap(value, leaves, depth);
  if (!isPlainObject(value)) return leaf(value, leaves);
  const keys = Object.keys(value);
  return { keys, items: keys.map((key) => collect(value[key], leaves, depth + 1)) };
}

function collectMap(map: ReadonlyMap<unknown, unknown>, leaves: unknown[], depth: number): TreeSpec {
  const mapKeys = [...map.keys()].map((key) => {
    if (typeof key === 'string' || (typeof key === 'number' && Number.isFinite(key))) return key;
    throw new PipelineError(
      'TREE_KEY',
      `flatten: a Map has the key ${String(key)}; use strings or numbers, which can be sent to other ranks`,
    );
  });
  return { mapKeys, items: [...map.values()].map((item) => collect(item, leaves, depth + 1)) };
}

function leaf(value: unknown, leaves: unknown[]): '*' {
  leaves.push(value);
  return '*';
}
