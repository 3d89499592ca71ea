/** @file The kinds of values that operators take, as TypeScript types. */

import type { FloatScalar } from '../base/float-scalar.ts';
import type { DType, DTypeName } from './dtype.ts';

/** A whole number; BigInt where 2^53 is not enough. */
export type Int = number | bigint;

/** A floating-point number. */
export type Float = number | FloatScalar;

/** An element type, as itself or by name. */
export type DTypeLike = DType | DTypeName;

/** How a tensor's elements are stored. */
export type Layout =
  | 'strided'
  | 'sparse_coo'
  | 'sparse_csr'
  | 'sparse_csc'
  | 'sparse_bsr'
  | 'sparse_bsc'
  | 'mkldnn'
  | 'jagged';

/** The order in which a tensor's dimensions lie in memory. */
export type MemoryFormat = 'contiguous_format' | 'preserve_format' | 'channels_last' | 'channels_last_3d';
