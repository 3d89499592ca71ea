/** @file A model as a graph together with the tensors it reads: what tracing and the reader of `.pt2` files give. */
import type { Tensor } from '@pipewright/torch';
import type { Graph } from './graph.ts';

/** Parameters and buffers by the names of the graph's attributes; names that share a tensor are tied. */
export type GraphState = ReadonlyMap<string, Tensor>;

/** A model as a graph and the tensors it reads, by name: what `traceModule` and the reader of `.pt2` files give. */
export interface GraphProgram {
  readonly graph: Graph;
  readonly state: GraphState;
  /** False where the graph does as the model did in one mode only, the one it was traced in. */
  readonly bothModes?: boolean | undefined;
  /** Whether the model was in training when it was traced. */
  readonly training?: boolean | undefined;
}
