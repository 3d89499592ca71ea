/** @file From the schedule that a user names to the order that ranks walk. */
import { buildSchedule, lower, Schedule, type ScheduleData, validate } from '@pipewright/schedule';
import { checkCount } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { edgesOf, isChain, type StageDescription } from '../stage/wiring.ts';
import type { AnyRuntimeOptions } from './options.ts';

/** The lowered order: as given where it has messages already, else lowered for the connections of the stages. */
export function lowerFor(schedule: Schedule, descriptions: readonly StageDescription[]): Schedule {
  const edges = edgesOf(descriptions);
  const chain = isChain(edges, schedule.stages);
  const hasMessages = schedule.order.some((row) =>
    row.some((cell) => cell !== null && (cell.kind.startsWith('SEND') || cell.kind.startsWith('RECV'))),
  );
  const lowered = hasMessages
    ? schedule
    : lower(withoutReductions(schedule), { unshardWindow: false, ...(chain ? {} : { edges }) });
  const [first, ...more] = validate(lowered);
  if (first !== undefined)
    throw new PipelineError(
      'BAD_SCHEDULE',
      `the schedule ${schedule.name} cannot be run: ${first.explanation}${more.length > 0 ? ` (and ${more.length} more; validate() lists them)` : ''}`,
      { violations: [first, ...more] },
    );
  return lowered;
}

/** PyTorch's orders of GPipe and 1F1B end with reductions; lowering puts its own. */
function withoutReductions(schedule: Schedule): Schedule {
  if (schedule.isComputeOnly) return schedule;
  const { name, ranks, stages, microbatches, stageToRank } = schedule;
  const order = schedule.order.map((row) => row.filter((cell) => cell === null || cell.kind !== 'REDUCE_GRAD'));
  return Schedule.from({ name, ranks, stages, microbatches, stageToRank, order });
}

/** What a schedule is made for. */
interface Frame {
  readonly ranks: number;
  readonly stages: number;
  readonly options: AnyRuntimeOptions;
}

/** The schedule a user gave, or the one of that name for these ranks and stages. */
export function resolveSchedule(schedule: Schedule | ScheduleData | string, frame: Frame): Schedule {
  const { ranks, stages, options } = frame;
  const { microbatches, costs } = options;
  if (typeof schedule !== 'string') {
    const given = Schedule.from(schedule);
    if (microbatches !== undefined && microbatches !== given.microbatches)
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineRuntime: microbatches is ${microbatches}, but the schedule has ${given.microbatches}; leave the option out`,
      );
    if (given.ranks !== ranks)
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineRuntime: the schedule is for ${given.ranks} ranks, the group has ${ranks}`,
      );
    return given;
  }
  checkCount('PipelineRuntime', 'microbatches', microbatches);
  return buildSchedule(schedule, {
    ranks,
    stages,
    microbatches: microbatches as number,
    ...(costs === undefined ? {} : { costs }),
  });
}
