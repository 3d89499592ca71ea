/** @file Where the results of a step go: to registers, or nowhere. */
import type { RegisterKind, Registers } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import type { GraphNode } from '../graph/graph.ts';
import type { RawResults } from './higher-order.ts';
import { freeValue } from './program.ts';

/** Where the results of a step go: to a register, to several, or nowhere (null where the result is a tensor). */
export type Target =
  | { readonly register: number; readonly kind: RegisterKind }
  | { readonly dropped: RegisterKind }
  | readonly Target[]
  | null;

/** Puts the results of an operator, whose kinds the schema says, to their places. */
export function storeParts(node: GraphNode, value: unknown, target: Target, registers: Registers): void {
  if (target === null) freeValue(value, Array.isArray(value) ? 'tensors' : 'tensor');
  else if ('dropped' in target) freeValue(value, target.dropped);
  else if ('register' in target) registers[target.register] = value;
  else {
    const items = value as readonly unknown[];
    if (items.length < target.length) {
      const error = tooFew(node, items.length, target.length);
      freeValue(value, 'tensors');
      throw error;
    }
    for (let i = 0; i < items.length; i++) storeParts(node, items[i], target[i] ?? null, registers);
  }
}

function tooFew(node: GraphNode, found: number, wanted: number): PipelineError {
  return new PipelineError(
    'GRAPH_RUN',
    `'${node.name}' gave ${found} results, but the graph takes its element ${wanted - 1}`,
  );
}

/** Puts results that come with their kinds to their places. */
export function storeResults(
  node: GraphNode,
  results: RawResults,
  targets: readonly Target[],
  registers: Registers,
): void {
  const { values, kinds } = results;
  const refuse = (error: PipelineError): never => {
    values.forEach((value, i) => freeValue(value, kinds[i] ?? 'other'));
    throw error;
  };
  if (values.length < targets.length) refuse(tooFew(node, values.length, targets.length));
  targets.forEach((target, i) => {
    if (target === null || !('register' in target)) return;
    const isTensor = kinds[i] === 'tensor' || kinds[i] === 'tensors';
    if (kinds[i] !== target.kind && (isTensor || target.kind === 'tensor' || target.kind === 'tensors'))
      refuse(
        new PipelineError(
          'GRAPH_RUN',
          `result ${i} of '${node.name}' is a ${kinds[i] === 'other' ? 'value' : kinds[i]}, but its metadata says ${target.kind}`,
        ),
      );
  });
  values.forEach((value, i) => {
    const target = targets[i] ?? null;
    if (target === null || 'dropped' in target) freeValue(value, kinds[i] ?? 'other');
    else storeParts(node, value, target, registers);
  });
}
