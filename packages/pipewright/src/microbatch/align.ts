/** @file Lays one tree over another: values and their specs, or two chunks. By position in arrays, by name elsewhere. */

import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { type FlatTree, flatten, formatSpec, isPlainObject, type TreeSpec } from '../base/tree.ts';

/** The names of the two trees, for messages. */
export interface Alignment {
  /** The function that was called. */
  readonly where: string;
  /** The tree that gives the order: `args`, `chunk 0`. */
  readonly value: string;
  /** The tree laid over it: `argsChunkSpec`, `chunk 1`. */
  readonly other: string;
  /** How to repair a difference. */
  readonly hint: string;
}

/** The leaves of `other` in the order of the leaves of `flat`; an error where the shapes differ. */
export function alignLeaves(flat: FlatTree, other: unknown, alignment: Alignment): unknown[] {
  const found: unknown[] = [];
  const visit = (shape: TreeSpec, part: unknown, path: string): void => {
    const problem = compare(shape, part);
    if (problem !== null) throw mismatch(alignment, `at ${alignment.value}${path}: ${problem}`);
    if (shape === '*') found.push(part);
    else if ('list' in shape)
      for (const [i, item] of shape.list.entries()) visit(item, (part as unknown[])[i], `${path}[${i}]`);
    else if ('mapKeys' in shape)
      for (const [i, key] of shape.mapKeys.entries())
        visit(shape.items[i]!, (part as Map<unknown, unknown>).get(key), `${path}.get(${String(key)})`);
    else
      for (const [i, key] of shape.keys.entries())
        visit(shape.items[i]!, (part as Record<string, unknown>)[key], `${path}.${key}`);
  };
  visit(flat.spec, other, '');
  return found;
}

/** The leaves of `other` by position, whatever their names, as PyTorch does. */
export function alignByPosition(flat: FlatTree, other: unknown, alignment: Alignment): unknown[] {
  const given = flatten(other);
  if (topLength(given.spec) === topLength(flat.spec) && given.leaves.length === flat.leaves.length) return given.leaves;
  throw mismatch(alignment, `${formatSpec(given.spec)} against ${formatSpec(flat.spec)}`);
}

/** What differs at this level, or null. */
function compare(shape: TreeSpec, part: unknown): string | null {
  if (shape === '*') return isContainer(part) ? `${show(part)} for a single value` : null;
  if ('list' in shape) {
    if (!Array.isArray(part)) return `${show(part)} for an array`;
    return part.length === shape.list.length ? null : `${part.length} for ${shape.list.length} elements`;
  }
  const isMap = 'mapKeys' in shape;
  if (isMap ? !(part instanceof Map) : !isPlainObject(part))
    return `${show(part)} for ${isMap ? 'a Map' : 'an object'}`;
  const wanted: readonly (string | number)[] = isMap ? shape.mapKeys : shape.keys;
  const given: unknown[] = isMap ? [...(part as Map<unknown, unknown>).keys()] : Object.keys(part as object);
  const missing = wanted.filter((key) => !given.includes(key)).map((key) => `nothing for '${key}'`);
  const extra = given.filter((key) => !wanted.includes(key as string)).map((key) => `'${String(key)}' for nothing`);
  return missing.length + extra.length === 0 ? null : [...missing, ...extra].join(', ');
}

function isContainer(value: unknown): boolean {
  return Array.isArray(value) || value instanceof Map || isPlainObject(value);
}

/** Number of entries at the top, which PyTorch compares as well. */
function topLength(spec: TreeSpec): number {
  if (spec === '*') return -1;
  return 'list' in spec ? spec.list.length : spec.items.length;
}

function mismatch({ where, value, other, hint }: Alignment, what: string): PipelineError {
  return new PipelineError('TREE_MISMATCH', `${where}: ${other} is not shaped like ${value}: ${what}; ${hint}`);
}
