/**
 * @file Values that several stages use, such as masks and rotary tables: sent once to each, or computed again where they
 * are used. Computing again is possible without parameters and random numbers, and worth it where it is cheaper than sending.
 */

import { changedBy, isRandom, memoryOf } from '../graph/effects.ts';
import { type GraphNode, inputsOf } from '../graph/graph.ts';
import { bytesOf, costOf } from '../graph/node-cost.ts';
import type { FlatNode } from '../graph/regions.ts';
import type { Places } from './own-changes.ts';
import { isSize } from './sizes.ts';

/** How values that several stages use reach them. */
export type SharedValues = 'send' | 'recompute' | 'auto';

/** Seconds to send a byte between stages, and to send anything at all. */
const secondsPerByte = 1 / 10e9;
const secondsPerMessage = 10e-6;

/** The nodes of every stage, with shared values computed where they are used instead of sent. */
export function recomputeShared(
  bodies: readonly FlatNode[][],
  places: Places,
  choice: 'recompute' | 'auto',
): FlatNode[][] {
  const flats = new Map(bodies.flat().map((flat) => [flat.node.name, flat]));
  // Nodes as the stages have them now: those that change tensors of other stages work on copies.
  const nodes = new Map([...places.nodes, ...[...flats].map(([name, { node }]) => [name, node] as const)]);
  const position = new Map([...flats.keys()].map((name, i) => [name, i]));
  const changed = new Set(
    bodies.flat().flatMap(({ node }) => changedBy(node).map((name) => memoryOf(name, nodes))), // also through views
  );
  return bodies.map((body, stage) => {
    const made = new Set(body.map(({ node }) => node.name));
    const added = new Set<string>();
    const foreign = new Set(
      body.flatMap(({ node }) => inputsOf(node)).filter((name) => !made.has(name) && flats.has(name)),
    );
    for (const name of foreign) {
      const slice = sliceOf(name, { nodes, flats, changed, made });
      if (slice === null) continue;
      const fresh = [...slice].filter((each) => !added.has(each));
      if (choice === 'auto' && !isCheaper(name, fresh, { nodes, body, foreign, stage })) continue;
      for (const each of fresh) added.add(each);
    }
    if (added.size === 0) return [...body];
    const front = [...added].sort((a, b) => position.get(a)! - position.get(b)!);
    return [...front.map((name) => flats.get(name)!), ...body];
  });
}

interface Slice {
  readonly nodes: ReadonlyMap<string, GraphNode>;
  readonly flats: ReadonlyMap<string, FlatNode>;
  /** The tensors that are changed in place somewhere: what they hold depends on when they are read. */
  readonly changed: ReadonlySet<string>;
  readonly made: ReadonlySet<string>;
}

/** Everything that a value is computed from, inputs of the model left out; null where it cannot be computed again. */
function sliceOf(name: string, around: Slice): Set<string> | null {
  const { nodes, flats, changed, made } = around;
  const slice = new Set<string>();
  const queue = [name];
  for (let next = queue.pop(); next !== undefined; next = queue.pop()) {
    if (slice.has(next) || made.has(next)) continue;
    const node = nodes.get(next);
    if (node === undefined || changed.has(memoryOf(next, nodes))) return null;
    if (node.kind === 'placeholder') continue;
    if (node.kind === 'attribute') {
      if (node.role === 'parameter') return null;
      continue;
    }
    if (!flats.has(next)) return null;
    if (
      node.kind === 'module' ||
      (node.kind === 'call' && (isRandom(node.op) || /^(function|higher_order)::/.test(node.op)))
    )
      return null;
    if (slice.size > 200) return null;
    slice.add(next);
    queue.push(...inputsOf(node));
  }
  return slice;
}

interface Comparison {
  readonly nodes: ReadonlyMap<string, GraphNode>;
  readonly body: readonly FlatNode[];
  readonly foreign: ReadonlySet<string>;
  readonly stage: number;
}

/** Whether computing costs less than sending, counting the inputs of the model that have to be sent for it. */
function isCheaper(name: string, slice: readonly string[], { nodes, foreign }: Comparison): boolean {
  const send = bytesOf(nodes.get(name)?.meta ?? null) * secondsPerByte + secondsPerMessage;
  const inputs = new Set(
    slice
      .filter((each) => !isSize(nodes.get(each)!)) // a number, found out or sent by itself
      .flatMap((each) => inputsOf(nodes.get(each)!))
      .filter((each) => nodes.get(each)?.kind === 'placeholder' && !foreign.has(each)),
  );
  let compute = 0;
  for (const each of slice) compute += costOf(nodes.get(each)!, nodes).seconds;
  for (const input of inputs) compute += bytesOf(nodes.get(input)?.meta ?? null) * secondsPerByte + secondsPerMessage;
  return compute < send;
}
