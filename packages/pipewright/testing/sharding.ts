/** @file What the conformance of data parallelism runs and gets: types for `sharding.mjs` and its users. */

/** How stages are divided among the ranks beside the pipeline. */
export type Wrap = 'replicate' | 'optimizer' | 'gradients' | 'parameters';

/** A run on a mesh; see ranks/parallel/replica.mjs. */
export interface Case {
  readonly schedule: string;
  readonly pp: number;
  readonly dp: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly rows: readonly number[];
  readonly accumulate: number;
  readonly wrap?: Wrap;
  /** Groups of shards that hold the same. */
  readonly replicas?: number;
  readonly clip?: number;
  readonly norm?: number | 'inf';
  readonly order?: object;
  readonly checkpoint?: boolean;
  readonly bucketCapMb?: number;
  readonly evaluate?: boolean;
  readonly divisor?: boolean;
  readonly columns?: boolean;
  readonly units?: boolean;
  readonly reshardAfterForward?: boolean;
  readonly keepGrads?: boolean;
  readonly device?: 'cpu' | 'cuda';
  /** The loss needs no target, and only the rank of the first stage is given anything. */
  readonly alone?: boolean;
  /** Messages go over lanes, as on GPUs. */
  readonly lanes?: 'host';
  /** Without a pipeline and without replicas. */
  readonly plain?: boolean;
}

/** Where a part lies in the whole. */
export interface Part {
  readonly globalShape: readonly number[];
  readonly dim: number;
  readonly offset: number;
  readonly length: number;
}

type Values = Readonly<Record<string, readonly number[] | null>>;

/** What a rank found. */
export interface Result {
  readonly grads: Values;
  readonly weights: Values;
  readonly norms: readonly number[];
  readonly losses: readonly number[];
  readonly parts?: Readonly<Record<string, Part>>;
  readonly reductions: readonly (readonly [number, number])[];
  readonly gathers: readonly (readonly [number, number])[];
  /** UNSHARDs in the row. */
  readonly planned: number;
  readonly mesh: string;
}
