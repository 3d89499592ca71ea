/** @file What all ranks must agree on before the first step: who holds which stage, how stages are connected, the schedule. */
import type { Schedule } from '@pipewright/schedule';
import type { distributed } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { StageDescription } from '../stage/wiring.ts';
import { frozenText } from './ties.ts';

/** A stage, as its rank describes it to the others. Plain JSON. */
export interface AgreedStage extends StageDescription {
  /** Names of the ties whose copies on the stage are frozen; left out where nothing is learned. */
  readonly frozenTies?: readonly string[] | undefined;
}

/** One rank's part. Plain JSON. */
interface RankDescription<Stage extends AgreedStage = AgreedStage> {
  readonly schedule: string;
  readonly stages: readonly Stage[];
}

/**
 * Exchanges descriptions and checks them. All ranks come to the same verdict, so all of them fail, or none.
 * Returns the descriptions of all stages, by stage.
 */
export function agree<Stage extends AgreedStage>(
  group: distributed.ProcessGroup | null,
  schedule: Schedule,
  stages: readonly Stage[],
): Stage[] {
  const mine: RankDescription<Stage> = { schedule: fingerprint(schedule), stages };
  const ranks =
    group === null
      ? [mine]
      : (group.allGatherObject(mine as unknown as distributed.Json) as unknown as RankDescription<Stage>[]);
  const problems = [
    ...compareSchedules(ranks),
    ...checkPlacement(ranks, schedule),
    ...compareShapes(ranks),
    ...compareFrozen(ranks),
  ];
  if (problems.length > 0)
    throw new PipelineError('NO_AGREEMENT', `the ranks do not fit together: ${problems.join('; ')}`, { problems });
  return ranks.flatMap((rank) => rank.stages).sort((a, b) => a.stage - b.stage);
}

function compareSchedules(ranks: readonly RankDescription[]): string[] {
  const first = ranks[0]?.schedule;
  return ranks.flatMap(({ schedule }, rank) =>
    schedule === first ? [] : [`rank ${rank} runs ${schedule}, rank 0 ${String(first)}; give all the same schedule`],
  );
}

function checkPlacement(ranks: readonly RankDescription[], schedule: Schedule): string[] {
  const holders = new Map<number, number[]>();
  ranks.forEach(({ stages }, rank) => {
    for (const { stage } of stages) holders.set(stage, [...(holders.get(stage) ?? []), rank]);
  });
  const problems: string[] = [];
  for (let stage = 0; stage < schedule.stages; stage++) {
    const found = holders.get(stage) ?? [];
    const wanted = schedule.stageToRank[stage];
    if (found.length === 1 && found[0] === wanted) continue;
    const is = found.length === 0 ? 'no rank has it' : `rank ${found.join(' and rank ')} has it`;
    problems.push(`stage ${stage} belongs to rank ${String(wanted)} in ${schedule.name}, but ${is}`);
  }
  for (const stage of holders.keys())
    if (stage >= schedule.stages) problems.push(`stage ${stage} is not in the schedule of ${schedule.stages} stages`);
  return problems;
}

/** Declared outputs of a stage against the declared inputs of the only stage after it that takes all of them. */
function compareShapes(ranks: readonly RankDescription[]): string[] {
  const all = new Map(ranks.flatMap(({ stages }) => stages).map((stage) => [stage.stage, stage]));
  return [...all.values()].flatMap(({ stage, inputs, inputArgs }) => {
    const [source] = inputs;
    if (inputArgs === null || source === undefined || inputs.length > 1 || source.output !== undefined) return [];
    const outputs = all.get(source.stage)?.outputArgs ?? null;
    if (outputs === null || outputs.join() === inputArgs.join()) return [];
    return [
      `stage ${source.stage} declares the outputs ${outputs.join(', ')}, stage ${stage} the inputs ${inputArgs.join(', ')}`,
    ];
  });
}

/** Copies of a tied parameter are frozen on all stages that hold it, or on none. */
function compareFrozen(ranks: readonly RankDescription[]): string[] {
  const all = ranks.flatMap(({ stages }) => stages).filter(({ frozenTies }) => frozenTies !== undefined);
  return [...new Set(all.flatMap(({ frozenTies }) => frozenTies!))].flatMap((tie) => {
    const frozen = all.find(({ frozenTies }) => frozenTies!.includes(tie))!;
    const learned = all.find(({ ties, frozenTies }) => Object.values(ties).includes(tie) && !frozenTies!.includes(tie));
    return learned === undefined ? [] : [frozenText(tie, frozen.stage, `stage ${learned.stage}`)];
  });
}

/** A schedule in a few words that differ whenever two schedules do. */
export function fingerprint(schedule: Schedule): string {
  let hash = 0x811c9dc5;
  for (const row of schedule.order) {
    for (const cell of row) {
      const text = cell === null ? '.' : `${cell.kind}${cell.stage},${cell.microbatch}${JSON.stringify(cell.parts)}`;
      for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
    }
    hash = Math.imul(hash ^ 0xff, 0x01000193) >>> 0;
  }
  const { name, ranks, stages, microbatches } = schedule;
  return `${name} (${ranks} ranks, ${stages} stages, ${microbatches} microbatches, ${hash.toString(16)})`;
}
