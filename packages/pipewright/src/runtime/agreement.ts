/** @file What all ranks must agree on before the first step: who holds which stage, how stages are connected, the schedule. */
import type { Schedule } from '@pipewright/schedule';
import type { distributed } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { StageDescription } from '../stage/wiring.ts';
import { frozenText, type TiedCopy } from './gradients/ties.ts';

/** A stage, as its rank describes it to the others. Plain JSON. */
export interface AgreedStage extends StageDescription {
  /** Its copies of tied parameters. */
  readonly tied: readonly TiedCopy[];
  /** Whether its rank has a `lossFn`, so that its steps have backwards. */
  readonly learns: boolean;
}

/** One rank's part. Plain JSON. */
interface RankDescription<Stage extends AgreedStage = AgreedStage> {
  readonly schedule: string;
  /** The transport of its messages. */
  readonly way: string;
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
  way = '',
): Stage[] {
  const mine: RankDescription<Stage> = { schedule: fingerprint(schedule), way, stages };
  const ranks =
    group === null
      ? [mine]
      : (group.allGatherObject(mine as unknown as distributed.Json) as unknown as RankDescription<Stage>[]);
  const problems = [
    ...compareSchedules(ranks),
    ...compareWays(ranks),
    ...checkPlacement(ranks, schedule),
    ...compareShapes(ranks),
    ...compareLearning(ranks),
    ...compareTies(ranks),
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

function compareWays(ranks: readonly RankDescription[]): string[] {
  const first = ranks[0]?.way;
  return ranks.flatMap(({ way }, rank) =>
    way === first
      ? []
      : [
          `rank ${rank} sends its messages ${way}, rank 0 ${String(first)}; give all ranks stages on GPUs or none (a stage without parameters is where its option device says), and the same capture`,
        ],
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

/** All ranks have a loss, or none: without one a rank runs no backwards, and its stages get no gradients. */
function compareLearning(ranks: readonly RankDescription[]): string[] {
  const learns = ranks.map(({ stages }) => stages[0]?.learns ?? false);
  if (new Set(learns).size < 2) return [];
  const those = (which: boolean): string => learns.flatMap((each, rank) => (each === which ? [rank] : [])).join(', ');
  return [
    `there is a lossFn on rank ${those(true)} and none on rank ${those(false)}, which would run no backwards; give it to all ranks, or to none`,
  ];
}

/** A tied copy and where it is. */
interface PlacedCopy extends TiedCopy {
  readonly stage: number;
  readonly learns: boolean;
}

/** All copies of a tied parameter have the same shape, type and shards, so that their gradients can be summed, and no tensor is in two ties. */
function compareTies(ranks: readonly RankDescription[]): string[] {
  const byName = new Map<string, PlacedCopy[]>();
  const problems: string[] = [];
  for (const { stages } of ranks) {
    const copies = stages.flatMap(({ stage, learns, tied }) => tied.map((copy) => ({ ...copy, stage, learns })));
    for (const copy of copies) {
      const other = copies.find(({ tensor, name }) => tensor === copy.tensor && name < copy.name);
      if (other !== undefined) problems.push(twoTiesText(other, copy));
      byName.set(copy.name, [...(byName.get(copy.name) ?? []), copy]);
    }
  }
  for (const [name, copies] of byName) {
    copies.sort((a, b) => a.stage - b.stage);
    const first = copies[0]!;
    const unlike = copies.find((copy) => copyText(copy) !== copyText(first));
    if (unlike !== undefined) problems.push(unlikeText(name, first, unlike));
    const frozen = copies.find((copy) => copy.learns && copy.frozen);
    const learned = copies.find((copy) => copy.learns && !copy.frozen);
    if (frozen !== undefined && learned !== undefined)
      problems.push(frozenText(name, frozen.stage, `stage ${learned.stage}`));
  }
  return problems;
}

function twoTiesText(a: PlacedCopy, b: PlacedCopy): string {
  const places = `'${a.path}' of stage ${a.stage} and '${b.path}' of stage ${b.stage}`;
  return `one tensor is in the ties '${a.name}' and '${b.name}' (${places}), so that it would get the gradients of both and copies elsewhere would not stay equal; give one tensor one tie`;
}

function unlikeText(name: string, a: PlacedCopy, b: PlacedCopy): string {
  const what = `${a.dtype === b.dtype ? '' : 'type and '}shape${a.cut === null && b.cut === null ? '' : ', cut alike'}`;
  return `the tied parameter '${name}' is ${copyText(a)} on stage ${a.stage} and ${copyText(b)} on stage ${b.stage}; tie parameters of one ${what}`;
}

function copyText({ dtype, shape, cut }: TiedCopy): string {
  const part =
    cut === null ? '' : ` (from index ${cut.offset} along dimension ${cut.dim} of [${cut.globalShape.join(', ')}])`;
  return `${dtype}[${shape.join(', ')}]${part}`;
}

/** A short text that is different for different schedules. */
function fingerprint(schedule: Schedule): string {
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
