/** @file How long the activations of a rank live, and how few slots hold them. */

import { checkChoice, checkCount, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Code } from '../model/packed.ts';
import { Schedule, type ScheduleData } from '../model/schedule.ts';

/** `stage_microbatch`: every stage's activation of a microbatch has a slot. `microbatch`: all stages of a microbatch share one. */
export type ActivationGranularity = 'microbatch' | 'stage_microbatch';

/** What `analyzePipelineActivationLiveness` looks at. */
export interface ActivationLivenessOptions {
  readonly ppRank: number;
  /** Default: all stages of the rank. */
  readonly stageIndices?: readonly number[];
  /** Default `stage_microbatch`. */
  readonly granularity?: ActivationGranularity;
}

/** Lifetimes and slots of the activations of one rank. */
export interface PipelineActivationLiveness {
  readonly ppRank: number;
  readonly granularity: ActivationGranularity;
  readonly stageIndices: readonly number[];
  readonly numMicrobatches: number;
  /** Slots that are needed. */
  readonly numSlots: number;
  /**
   * The slot of an activation.
   * @example plan.slotFor(0, 3)
   */
  slotFor(stageIndex: number, microbatchIndex: number): number;
  /**
   * First and last slot of the row in which an activation is needed, both included.
   * @example plan.getActivationLifetime(0, 3) // [3, 9]
   */
  getActivationLifetime(stageIndex: number, microbatchIndex: number): readonly [number, number];
}

class Liveness implements PipelineActivationLiveness {
  readonly ppRank: number;
  readonly granularity: ActivationGranularity;
  readonly stageIndices: readonly number[];
  readonly numMicrobatches: number;
  readonly numSlots: number;
  private readonly lifetimes: ReadonlyMap<string, readonly [number, number]>;
  private readonly slots: ReadonlyMap<string, number>;

  constructor(schedule: Schedule, options: Required<ActivationLivenessOptions>) {
    this.ppRank = options.ppRank;
    this.granularity = options.granularity;
    this.stageIndices = options.stageIndices;
    this.numMicrobatches = schedule.microbatches;
    const own = lifetimesOf(schedule, options);
    const groups = new Map<string, [number, number]>();
    for (const [key, [first, last]] of own) {
      const name = this.groupOf(key);
      const group = groups.get(name);
      groups.set(name, group === undefined ? [first, last] : [Math.min(group[0], first), Math.max(group[1], last)]);
    }
    const { slotOf, count } = assignSlots(groups);
    this.numSlots = count;
    this.lifetimes = new Map([...own.keys()].map((key) => [key, groups.get(this.groupOf(key))!]));
    this.slots = new Map([...own.keys()].map((key) => [key, slotOf.get(this.groupOf(key))!]));
  }

  slotFor(stageIndex: number, microbatchIndex: number): number {
    return this.find(this.slots, stageIndex, microbatchIndex);
  }

  getActivationLifetime(stageIndex: number, microbatchIndex: number): readonly [number, number] {
    return this.find(this.lifetimes, stageIndex, microbatchIndex);
  }

  private groupOf(key: string): string {
    return this.granularity === 'microbatch' ? key.slice(key.indexOf('/')) : key;
  }

  private find<T>(of: ReadonlyMap<string, T>, stage: number, microbatch: number): T {
    const found = of.get(`${stage}/${microbatch}`);
    if (found !== undefined) return found;
    throw new ScheduleError(
      'BAD_OPTION',
      `PipelineActivationLiveness: stage ${show(stage)} and microbatch ${show(microbatch)} were not looked at; stages are ${this.stageIndices.join(', ')}, microbatches 0 to ${this.numMicrobatches - 1}`,
    );
  }
}

/**
 * How long each activation of a rank lives, from its F to its B or W, and which of the fewest slots holds it.
 * @example analyzePipelineActivationLiveness(buildSchedule('1F1B', { ranks: 2, microbatches: 4 }), { ppRank: 0 }).numSlots // 2
 */
export function analyzePipelineActivationLiveness(
  input: Schedule | ScheduleData,
  options: ActivationLivenessOptions,
): PipelineActivationLiveness {
  const caller = 'analyzePipelineActivationLiveness';
  checkOptions(caller, options, ['ppRank', 'stageIndices', 'granularity']);
  checkChoice(caller, 'granularity', options.granularity, ['microbatch', 'stage_microbatch']);
  const schedule = Schedule.from(input);
  const ppRank = checkCount(caller, 'ppRank', options.ppRank, 0);
  if (ppRank >= schedule.ranks)
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: ppRank is ${ppRank}; the schedule has ranks 0 to ${schedule.ranks - 1}`,
    );
  const { stageIndices = schedule.stagesOf(ppRank), granularity = 'stage_microbatch' } = options;
  const isList = Array.isArray(stageIndices) && stageIndices.length > 0;
  if (!isList || new Set(stageIndices).size !== stageIndices.length)
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: stageIndices must be a list of different stages, got ${show(stageIndices)}`,
    );
  return new Liveness(schedule, { ppRank, stageIndices, granularity });
}

/** First and last slot of each activation, by `stage/microbatch`. */
function lifetimesOf(
  schedule: Schedule,
  { ppRank, stageIndices }: Required<ActivationLivenessOptions>,
): Map<string, [number, number]> {
  const wanted = new Set(stageIndices);
  const first = new Map<string, number>();
  const last = new Map<string, number>();
  schedule.forEachLeaf(({ rank, slot, code, stage, microbatch }) => {
    if (rank !== ppRank || !wanted.has(stage)) return;
    if (code === Code.F) first.set(`${stage}/${microbatch}`, slot);
    else if (code === Code.B || code === Code.W) last.set(`${stage}/${microbatch}`, slot);
  });
  const found = new Map<string, [number, number]>();
  for (const stage of stageIndices) {
    for (let m = 0; m < schedule.microbatches; m++) {
      const from = first.get(`${stage}/${m}`);
      const to = last.get(`${stage}/${m}`);
      if (from === undefined || to === undefined || to < from)
        throw new ScheduleError(
          'BAD_SCHEDULE',
          `analyzePipelineActivationLiveness: rank ${ppRank} has no ${stage}F${m} with a B or W after it; pick stages of the rank and a schedule that trains`,
          { stage, microbatch: m },
        );
      found.set(`${stage}/${m}`, [from, to]);
    }
  }
  return found;
}

/** Gives every lifetime, by start, then end, the lowest slot that is free; one that ends in a slot is not free in it. */
function assignSlots(lifetimes: ReadonlyMap<string, readonly [number, number]>): {
  slotOf: Map<string, number>;
  count: number;
} {
  const sorted = [...lifetimes].sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]);
  const slotOf = new Map<string, number>();
  const busyUntil: number[] = [];
  for (const [key, [start, end]] of sorted) {
    let slot = busyUntil.findIndex((until) => until < start);
    if (slot < 0) slot = busyUntil.length;
    busyUntil[slot] = end;
    slotOf.set(key, slot);
  }
  return { slotOf, count: busyUntil.length };
}
