/** @file What may go into a model and come out of it. */
import type { Tensor } from '@pipewright/torch';

/** A tensor, or a tree of arrays, objects and maps with tensors and plain values in it. */
export type Value = Tensor | object | string | number | bigint | boolean | null | undefined;
