/** @file What the parameters of a unit have in common: who holds the parts, what is divided, in which types. */
import type { DType, distributed } from '@pipewright/torch';

/** What the parameters of a unit have in common. */
export interface UnitSettings {
  /** The ranks that hold the parts. */
  readonly group: distributed.ProcessGroup;
  /** The ranks that hold the same part; null where there are none. */
  readonly replicas: distributed.ProcessGroup | null;
  readonly level: ShardLevel;
  /** The type to compute in; null: the parameters' own. */
  readonly paramDtype: DType | null;
  /** The type to sum gradients in; null: that of the whole parameters. */
  readonly reduceDtype: DType | null;
  /** Whether the whole parameters of a stage are freed as soon as another stage is needed. */
  readonly reshardAfterForward: boolean;
}

/** What is divided among the ranks of a group: the optimizer's states, also the gradients, also the parameters. */
export type ShardLevel = 'optimizer' | 'gradients' | 'parameters';
