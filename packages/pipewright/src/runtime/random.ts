/** @file Random numbers by name in a pipeline: layers get their names in the whole model, microbatches their numbers in the whole batch. */
import { nn } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { DataParallel } from '../parallel/data-parallel.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { RankContext } from './row/step-state.ts';

/** The named random numbers of these stages' forwards; null without the option. */
export function namedRandom(
  source: nn.NamedRandom | undefined,
  stages: readonly PipelineStage[],
  { microbatches, parallel }: { readonly microbatches: number; readonly parallel: DataParallel | null },
): RankContext['random'] {
  if (source === undefined) return null;
  if (!(source instanceof nn.NamedRandom))
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: random is ${show(source)}; give new nn.NamedRandom({ seed })`,
    );
  for (const stage of stages) source.name(stage.module, stage.names);
  // Which part of the whole batch this rank has: replicas first, then those that share parameters among them.
  const part = (parallel?.groups ?? []).toReversed().reduce((at, { size, rank }) => at * size + rank, 0);
  return { source, before: part * microbatches };
}
