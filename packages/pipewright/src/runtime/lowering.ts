/** @file From the schedule that a user gives to the lowered one that ranks walk. */
import {
  buildSchedule,
  type DataParallelRules,
  isPlan,
  type LowerOptions,
  lower,
  type PipelinePlan,
  planSchedule,
  readPlan,
  Schedule,
  type ScheduleData,
  validate,
} from '@pipewright/schedule';
import { checkCount, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import type { StageSharding } from '../parallel/data-parallel.ts';
import { edgesOf, isChain } from '../stage/wiring.ts';
import type { AgreedStage } from './agreement.ts';
import type { AnyRuntimeOptions } from './options.ts';
import { meshHint } from './planned.ts';

/** What ranks tell each other of a stage: its wiring, how it is sharded, and how many pipelines beside each other have it. */
export interface ParallelDescription extends AgreedStage {
  readonly sharding?: StageSharding | null;
  readonly pipelines?: number;
}

/** The lowered order: as given where it has messages already, else lowered for the connections of the stages. */
export function lowerFor(
  schedule: Schedule,
  descriptions: readonly ParallelDescription[],
  options: Pick<AnyRuntimeOptions, 'unshardWindow' | 'dataParallel'> = {},
): Schedule {
  const edges = edgesOf(descriptions);
  const chain = isChain(edges, schedule.stages);
  const hasMessages = schedule.order.some((row) =>
    row.some((cell) => cell !== null && (cell.kind.startsWith('SEND') || cell.kind.startsWith('RECV'))),
  );
  const rules = rulesOf(descriptions);
  const lowered = hasMessages
    ? schedule
    : lower(withoutReductions(schedule), {
        ...collectivesOf(descriptions, rules, options),
        ...(chain ? {} : { edges }),
      });
  const [first, ...more] = validate(lowered, rules === null ? {} : { dataParallel: rules });
  if (first !== undefined)
    throw new PipelineError(
      'BAD_SCHEDULE',
      `the schedule ${schedule.name} cannot be run: ${first.explanation}${more.length > 0 ? ` (and ${more.length} more; validate() lists them)` : ''}`,
      { violations: [first, ...more] },
    );
  return lowered;
}

/** How stages are sharded, for lowering and the rules of it; null where they are not. */
function rulesOf(descriptions: readonly ParallelDescription[]): DataParallelRules | null {
  const all = descriptions.map(({ sharding }) => sharding ?? null);
  const [first = null] = all;
  const [text, ...texts] = descriptions.map(besideText);
  texts.forEach((other, i) => {
    if (other === text) return;
    throw new PipelineError(
      'NO_AGREEMENT',
      `the ranks do not fit together: stage ${i + 1} is ${other}, stage 0 is ${text}; treat all stages alike, also those without parameters: replicate or fullyShard with the same mesh`,
      { stage: i + 1 },
    );
  });
  if (first === null) return null;
  const parameters = all.map((sharding) => sharding?.bytes ?? 0);
  return { level: first.level, shards: first.shards, parameters };
}

/** The replicas and shards of a stage in words; its losses are weighted by the rows of all of them. */
function besideText({ sharding = null, pipelines = 1 }: ParallelDescription): string {
  if (sharding === null) return pipelines === 1 ? 'neither replicated nor sharded' : `replicated on ${pipelines} ranks`;
  const { level, shards, replicas } = sharding;
  return `sharded at level '${level}' over ${shards} ranks${replicas === 1 ? '' : `, replicated ${replicas} times`}`;
}

/** Which collectives are put into the order, and where. */
function collectivesOf(
  descriptions: readonly ParallelDescription[],
  rules: DataParallelRules | null,
  { unshardWindow, dataParallel }: Pick<AnyRuntimeOptions, 'unshardWindow' | 'dataParallel'>,
): LowerOptions {
  if (rules === null || (unshardWindow !== undefined && unshardWindow !== false))
    return { unshardWindow: unshardWindow ?? false };
  const leaves = descriptions.some(({ sharding }) => sharding?.leaves === true);
  const compat = dataParallel?.maxActiveStages === undefined ? {} : { compat: 'torch' as const };
  return { ...compat, dataParallel: { ...rules, ...(leaves && { memoryLimit: 'least' as const }), ...dataParallel } };
}

/** PyTorch's orders of GPipe and 1F1B end with reductions; lowering puts its own. */
function withoutReductions(schedule: Schedule): Schedule {
  if (schedule.isComputeOnly) return schedule;
  const { name, ranks, stages, microbatches, stageToRank } = schedule;
  const order = schedule.order.map((row) => row.filter((cell) => cell === null || cell.kind !== 'REDUCE_GRAD'));
  return Schedule.from({ name, ranks, stages, microbatches, stageToRank, order });
}

/** The ranks and stages that a schedule is built for. */
interface Frame {
  readonly ranks: number;
  readonly stages: number;
  readonly options: AnyRuntimeOptions;
}

/** The schedule a user gave, that of a plan, or the one of that name for these ranks and stages. */
export function resolveSchedule(schedule: Schedule | ScheduleData | PipelinePlan | string, frame: Frame): Schedule {
  const { ranks, stages, options } = frame;
  const { microbatches, costs } = options;
  if (schedule === null || (typeof schedule !== 'object' && typeof schedule !== 'string'))
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: the schedule is ${show(schedule)}; give a name such as '1F1B', a Schedule or { order: [['0F0', …]] }`,
    );
  if (typeof schedule !== 'string') {
    const given = isPlan(schedule) ? planSchedule(readPlan(schedule)) : Schedule.from(schedule);
    if (microbatches !== undefined && microbatches !== given.microbatches)
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineRuntime: microbatches is ${microbatches}, but the schedule has ${given.microbatches}; leave the option out`,
      );
    if (given.ranks !== ranks)
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineRuntime: the schedule is for ${given.ranks} ranks, the group has ${ranks}${meshHint(schedule)}`,
      );
    if (isPlan(schedule) && given.stages !== stages)
      throw new PipelineError(
        'BAD_OPTION',
        `PipelineRuntime: the plan has ${given.stages} stages, the model was cut into ${stages}; cut it with pipeline(model, { plan })`,
      );
    return given;
  }
  checkCount('PipelineRuntime', 'microbatches', microbatches);
  return buildSchedule(schedule, {
    ranks,
    stages,
    microbatches: microbatches!,
    ...(costs === undefined ? {} : { costs }),
  });
}

/** Refuses a schedule whose forwards have no backwards, where a loss asks for gradients. */
export function checkBackwards(schedule: Schedule): void {
  const forwards: string[] = [];
  const done = new Set<string>();
  for (const cell of schedule.order.flatMap((row) =>
    row.flatMap((each) => (each === null ? [] : (each.parts ?? [each]))),
  )) {
    const at = `${cell.stage} ${String(cell.microbatch)}`;
    if (cell.kind === 'F') forwards.push(at);
    else if (cell.kind === 'B') for (const half of ['I', 'W']) done.add(`${half} ${at}`);
    else if (cell.kind === 'I' || cell.kind === 'W') done.add(`${cell.kind} ${at}`);
  }
  const missing = forwards.filter((at) => !done.has(`I ${at}`) || !done.has(`W ${at}`));
  const [first] = missing;
  if (first === undefined) return;
  const [stage, m] = first.split(' ') as [string, string];
  const more = missing.length > 1 ? ` (and ${missing.length - 1} more)` : '';
  throw new PipelineError(
    'NO_BACKWARD',
    `step: there is a lossFn, but the schedule ${schedule.name} has no backward for ${stage}F${m}${more}; add ${stage}B${m}, or ${stage}I${m} and ${stage}W${m}, or leave lossFn out; eval computes losses without gradients`,
  );
}
