/** @file Tensors in words: for error messages and for comparing declared shapes. */
import { GradientEdge, Tensor } from '@pipewright/torch';
import { flatten, leafPaths } from './tree.ts';

/** A tensor as `float32[4, 8]`. */
export function describeTensor(tensor: Pick<Tensor, 'dtype' | 'shape'>): string {
  return `${tensor.dtype.name}[${tensor.shape.join(', ')}]`;
}

/**
 * What is in a tree, for error messages.
 *
 * @example debugInfo([x, { mask, flag: true }]) // '[0]: float32[4, 8] with gradient, [1].mask: bool[4], [1].flag: true'
 */
export function debugInfo(value: unknown): string {
  const { leaves, spec } = flatten(value);
  const paths = leafPaths(spec);
  const texts = leaves.map((leaf, i) => `${paths[i] === '' ? '' : `${paths[i]}: `}${describeLeaf(leaf)}`);
  return texts.length === 0 ? 'nothing' : texts.join(', ');
}

function describeLeaf(leaf: unknown): string {
  if (leaf instanceof Tensor) {
    if (leaf.isDisposed) return 'a disposed tensor';
    return `${describeTensor(leaf)}${leaf.requiresGrad ? ' with gradient' : ''}`;
  }
  if (leaf instanceof GradientEdge)
    return leaf.h === 0 ? 'a disposed gradient edge' : `${describeTensor(leaf)} with gradient`;
  if (typeof leaf === 'string') return JSON.stringify(leaf);
  return typeof leaf === 'object' && leaf !== null ? leaf.constructor.name : String(leaf);
}
