/** @file The tensors of a traced run as nodes of its graph: which node each one is now, and what it is a view of. */
import type { Device } from '@pipewright/torch';
import type { GraphArgument, ValueMeta } from '../graph/graph.ts';
import { isWithoutGradients, type Region } from '../graph/regions.ts';

/** The regions of a node that runs under the modes that the trace began with. */
export const noRegions: readonly Region[] = [];

/** How a view was made, so that it can be made again. */
export interface View {
  readonly parent: TracedValue;
  readonly op: string;
  readonly args: readonly GraphArgument[];
  readonly kwargs: Readonly<Record<string, GraphArgument>>;
  /** Which argument the parent is. */
  readonly at: number;
  /** Which of several results it is. */
  readonly index: number | null;
}

/** A tensor of the run as a node of the graph. */
export interface TracedValue {
  /** The node that is this value now; in-place changes move it on. */
  ref: string;
  readonly device: Device;
  readonly meta: ValueMeta;
  /** The modes that it was made under. */
  readonly regions: readonly Region[];
  readonly view: View | null;
  /** Number of in-place changes of its memory that `ref` has seen. */
  seen: number;
  /** In-place changes of the memory; counted at the value that is no view. */
  changes: number;
  /** Whether a view through which no gradients flow was given gradients of its own by a change in place. */
  hasOwnGradient: boolean;
}

/** A value that is no view. */
export function newValue(
  ref: string,
  device: Device,
  meta: ValueMeta,
  regions: readonly Region[] = noRegions,
): TracedValue {
  return { ref, device, meta, regions, view: null, seen: 0, changes: 0, hasOwnGradient: false };
}

/** The tensor whose memory a value is or is a view of. */
export function rootOf(value: TracedValue): TracedValue {
  let root = value;
  while (root.view !== null) root = root.view.parent;
  return root;
}

/** Whether a value is a view through which no gradients flow. */
export function isDetached({ view, regions }: TracedValue): boolean {
  return view !== null && (view.op === 'aten::detach' || regions.some(isWithoutGradients));
}
