/** @file What kind of value a register holds, by what the graph says about it. */
import type { Operand, RegisterKind } from '@pipewright/torch/internal';
import type { ValueMeta } from '../graph/graph.ts';

/** Of the result of an operator whose schema says `type`. */
export function typeKind(type: string, meta: ValueMeta | undefined): RegisterKind {
  if (type === 'Tensor') return 'tensor';
  if (type.startsWith('Tensor')) return 'tensors';
  if (type === 'float' || type === 'bool') return type;
  return scalarMetaKind(meta) ?? 'int';
}

/** Of a number or truth value; undefined where the graph does not say that it is one. */
export function scalarMetaKind(meta: ValueMeta | undefined): RegisterKind | undefined {
  return meta !== undefined && meta !== null && 'scalar' in meta ? meta.scalar : undefined;
}

/** Of any value; undefined where the graph says nothing. */
export function kindOf(meta: ValueMeta | undefined): RegisterKind | undefined {
  if (meta === undefined || meta === null) return undefined;
  if (Array.isArray(meta)) return 'tensors';
  return scalarMetaKind(meta) ?? 'tensor';
}

/** Of a number or truth value written into the graph. */
export function fixedKind(operand: Operand): RegisterKind {
  const value = 'fixed' in operand ? operand.fixed : null;
  if (typeof value === 'boolean') return 'bool';
  return typeof value === 'object' && value !== null ? 'float' : 'int';
}
