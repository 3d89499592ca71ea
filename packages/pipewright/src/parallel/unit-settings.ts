/** @file What the parameters of a unit have in common: who holds the parts, what is divided, in which types. */
import type { DType, distributed } from '@pipewright/torch';

/** What the parameters of a unit have in common. */
export interface UnitSettings {
  /** The ranks that hold the parts. */
  readonly group: distributed.ProcessGroup;
  /** The ranks that hold the same part; null where there are none. */
  readonly replicas: distributed.ProcessGroup | null;
  readonly level: ShardLevel;
  /** What is computed with; null: the parameters' own type. */
  readonly paramDtype: DType | null;
  /** What gradients are summed in; null: that of the whole. */
  readonly reduceDtype: DType | null;
  /** Whether a stage is given up as soon as another one is needed. */
  readonly reshardAfterForward: boolean;
}

/** What is divided among the ranks of a group: the optimizer's states, also the gradients, also the parameters. */
export type ShardLevel = 'optimizer' | 'gradients' | 'parameters';
