/** @file How much memory the values of a graph take, computed from what is known of their shapes: nothing is run. */
import { type DTypeName, dtypes } from '@pipewright/torch';
import { checkArgument } from '../base/checks.ts';
import { isList } from '../base/list.ts';
import { changedBy, viewedArgument } from './effects.ts';
import { evaluate, parseExpression } from './expression.ts';
import type { CallNode, Dim, Graph, GraphNode, TensorMeta, ValueMeta } from './graph.ts';
import { inputsOf, isReference, usersOf } from './graph.ts';

/** Memory of a graph's values, in bytes. */
export interface ValueMemory {
  /** Of all values that operators make: what training keeps at most. */
  readonly total: number;
  /** Of the values alive at the same time when each is freed after its last use: what inference needs. */
  readonly peak: number;
  /** Values whose size is not known, which are not counted. */
  readonly unknown: number;
}

/**
 * The memory of a graph's values with the given sizes for its symbols.
 *
 * @example valueMemory(graph, new Map([['batch', 8]])).peak
 */
export function valueMemory(graph: Graph, sizes: ReadonlyMap<string, number>): ValueMemory {
  const users = usersOf(graph);
  checkArgument('valueMemory', sizes instanceof Map, ['the second argument', sizes], 'a Map of sizes by symbol');
  const lastUse = new Map<string, number>();
  const owner = new Map<string, string>();
  graph.nodes.forEach((node, i) => {
    owner.set(node.name, ownerOf(node, owner));
    for (const name of inputsOf(node)) lastUse.set(owner.get(name) ?? name, i);
  });
  const bytesOf = new Map<string, number>();
  const [ending, held] = [new Map<number, string[]>(), { now: 0, peak: 0, total: 0, unknown: 0 }];
  graph.nodes.forEach((node, i) => {
    if ((node.kind === 'call' || node.kind === 'module') && owner.get(node.name) === node.name) {
      const bytes = metaBytes(node.meta, sizes);
      if (bytes === undefined) held.unknown += (users.get(node.name)?.length ?? 0) > 0 ? 1 : 0;
      bytesOf.set(node.name, bytes ?? 0);
      held.now += bytes ?? 0;
      held.total += bytes ?? 0;
      const end = lastUse.get(node.name) ?? i;
      ending.set(end, [...(ending.get(end) ?? []), node.name]);
    }
    held.peak = Math.max(held.peak, held.now);
    for (const name of ending.get(i) ?? []) held.now -= bytesOf.get(name) ?? 0;
  });
  return { total: held.total, peak: held.peak, unknown: held.unknown };
}

/** The node whose memory a node's value is. */
function ownerOf(node: GraphNode, owner: ReadonlyMap<string, string>): string {
  const of = node.kind === 'element' ? node.of.ref : node.kind === 'call' ? sourceOf(node) : undefined;
  return of === undefined ? node.name : (owner.get(of) ?? node.name);
}

/** The node that a call's result lies in: what it changes or views; dropout in evaluation returns what it was given. */
function sourceOf(node: CallNode): string | undefined {
  const isIdentity = node.op === 'aten::dropout' && node.args[2] === false;
  const viewed = node.args[isIdentity ? 0 : viewedArgument(node.op)];
  return changedBy(node)[0] ?? (isReference(viewed) ? viewed.ref : undefined);
}

function metaBytes(meta: ValueMeta | undefined, sizes: ReadonlyMap<string, number>): number | undefined {
  if (meta === undefined) return undefined;
  if (meta === null || 'scalar' in meta) return 0;
  if (isList(meta)) {
    let sum = 0;
    for (const item of meta) {
      const bytes = metaBytes(item, sizes);
      if (bytes === undefined) return undefined;
      sum += bytes;
    }
    return sum;
  }
  return tensorBytes(meta, sizes);
}

/** Bytes of a tensor, or nothing where a size is not known. @example tensorBytes({ dtype: 'float32', shape: ['s0', 4] }, new Map([['s0', 8]])) // 128 */
export function tensorBytes(meta: TensorMeta, sizes: ReadonlyMap<string, number>): number | undefined {
  const isMeta = typeof meta === 'object' && meta !== null && Array.isArray(meta.shape) && sizes instanceof Map;
  checkArgument('tensorBytes', isMeta, ['what is known of the tensor', meta], '{ dtype, shape } and a Map of sizes');
  let bytes = dtypes.get(meta.dtype as DTypeName)?.itemSize ?? 0;
  for (const dim of meta.shape) {
    const size = sizeOf(dim, sizes);
    if (size === undefined) return undefined;
    bytes *= size;
  }
  return bytes;
}

function sizeOf(dim: Dim, sizes: ReadonlyMap<string, number>): number | undefined {
  if (typeof dim === 'number') return dim;
  const expression = parseExpression(dim);
  return expression === undefined ? undefined : evaluate(expression, sizes);
}
