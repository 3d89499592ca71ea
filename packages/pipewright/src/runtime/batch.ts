/** @file What a step works on: the batch cut into microbatches, checked, and the weight of each in the loss. */
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isCut, takeMicrobatches } from '../microbatch/given.ts';
import { type Microbatches, splitBatch } from '../microbatch/index.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { StepInput } from './capture.ts';
import { type AnyRuntimeOptions, isDivisor, type LossCaller } from './options.ts';
import type { LossWeights, StepWork } from './row/step-state.ts';

/** The rank that prepares a step, and its runtime's options. */
export interface Preparing {
  readonly where: 'step' | 'eval';
  readonly rank: number;
  readonly stages: readonly PipelineStage[];
  readonly microbatches: number;
  readonly options: AnyRuntimeOptions;
  readonly loss: LossCaller | null;
  readonly training: boolean;
  /** The rows of all replicas, from those of this one. */
  readonly totalRows: (rows: number) => number;
  /** Number of replicas, this one included. */
  readonly replicas: number;
}

/** Checks the arguments of a step and cuts them into microbatches. Those that this rank's stages do not use are ignored. */
export function prepareWork({ args, options }: StepInput, preparing: Preparing): StepWork {
  const { where, rank, stages, training, loss } = preparing;
  const { divisor } = options;
  const holdsLast = stages.some((stage) => stage.isLast);
  const holdsFirst = stages.some((stage) => stage.sources.length === 0);
  const { argMbs, target, targetMbs, ...rest } = options;
  const used: StepInput = {
    args: holdsFirst ? args : [],
    options: { ...rest, ...(holdsFirst && { argMbs }), ...(holdsLast && { target, targetMbs }) },
  };
  const batch = cut(used, preparing);
  const hasTarget = target !== undefined || targetMbs !== undefined;
  if (training && holdsLast && !hasTarget && loss?.needsTarget === true)
    throw new PipelineError(
      'BAD_INPUT',
      `${where}: rank ${rank} holds the last stage and needs a target: ${where}(…, { target })`,
    );
  if (!isDivisor(divisor))
    throw new PipelineError('BAD_INPUT', `${where}: divisor is ${show(divisor)}; give a number above 0`);
  for (const stage of stages)
    for (let m = 0; m < preparing.microbatches; m++) stage.checkGiven(batch.args[m], batch.kwargs[m]);
  return { training, batch, options, weights: weightsOf(batch.sizes, divisor, preparing) };
}

/** The work of a step that is refused: none. */
export function noWork({ options }: StepInput, { training, microbatches }: Preparing): StepWork {
  const batch: Microbatches = { args: [], kwargs: [], target: undefined, sizes: [] };
  const values = new Array<number>(microbatches).fill(0);
  return { training, batch, options, weights: { values, from: 'options', equal: 0 } };
}

function cut({ args, options }: StepInput, { where, microbatches: count, options: runtime }: Preparing): Microbatches {
  if (isCut(options)) return takeMicrobatches(where, options, count);
  const { kwargs, target } = options;
  if (args.length === 0 && target === undefined && Object.keys(kwargs ?? {}).length === 0)
    return { args: [], kwargs: [], target: undefined, sizes: [] };
  const { argsChunkSpec, kwargsChunkSpec, targetChunkSpec, lengths } = runtime;
  const specs = {
    ...(args.length > 0 && { argsChunkSpec }),
    kwargsChunkSpec,
    ...(target !== undefined && { targetChunkSpec }),
    ...(lengths !== undefined && { lengths }),
  };
  const batch = splitBatch({ args, kwargs, target }, count, specs);
  if (batch.args.length !== count)
    throw new PipelineError(
      'BATCH_TOO_SMALL',
      `${where}: a batch of ${batch.sizes.reduce((a, b) => a + b, 0)} rows cannot be cut into ${count} microbatches; give at least ${count} rows, or use fewer microbatches`,
    );
  return batch;
}

/** The weight of each microbatch's loss in the whole. */
function weightsOf(
  sizes: readonly number[],
  divisor: number | undefined,
  { microbatches, options, training, totalRows, replicas }: Preparing,
): LossWeights {
  const equal = 1 / (microbatches * replicas);
  const all = (values: (m: number) => number, from: LossWeights['from']): LossWeights => ({
    ...{ values: Array.from({ length: microbatches }, (_, m) => values(m)), from, equal },
  });
  const own = sizes.reduce((sum, size) => sum + size, 0);
  if (divisor !== undefined) return all(() => 1 / divisor, 'options');
  if (options.scaleGrads === false) return all(() => 1, 'options');
  const rows = training ? totalRows(own) : own;
  // Without rows to count, all microbatches of all replicas weigh the same, unless an earlier stage sends their rows.
  return own === 0 ? all(() => equal, 'nothing') : all((m) => sizes[m]! / rows, 'rows');
}
