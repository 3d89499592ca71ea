/** @file Calls functions that take tensors (modules, custom functions) from a program, whose values are raw. */
import type { RegisterKind } from '@pipewright/torch/internal';
import { onTensors, type RawResults } from './higher-order.ts';

/** Arguments as trees of raw values. */
export type RawTree =
  | { readonly value: unknown; readonly kind: RegisterKind | 'other' }
  | { readonly list: readonly RawTree[] }
  | { readonly dict: readonly (readonly [string, RawTree])[] };

/** Calls a function on trees of tensors that stand for raw values. */
export function callOnTensors(tree: RawTree, body: (given: unknown[]) => unknown): RawResults {
  const values: unknown[] = [];
  const kinds: (RegisterKind | 'other')[] = [];
  const collect = (part: RawTree): void => {
    if ('list' in part) part.list.forEach(collect);
    else if ('dict' in part) part.dict.forEach(([, item]) => collect(item));
    else {
      values.push(part.value);
      kinds.push(part.kind);
    }
  };
  collect(tree);
  return onTensors(values, kinds, (given) => {
    let next = 0;
    const build = (part: RawTree): unknown => {
      if ('list' in part) return part.list.map(build);
      if ('dict' in part) return Object.fromEntries(part.dict.map(([key, item]) => [key, build(item)]));
      return given[next++];
    };
    return body(build(tree) as unknown[]);
  });
}
