/** @file What a schedule generator is: a name, the shapes it takes, and a function from shape to order. */

import type { Costs } from '../../costs/costs.ts';
import { ScheduleError } from '../../model/errors.ts';
import type { PlacementStyle } from '../../model/placement.ts';
import type { Schedule } from '../../model/schedule.ts';

/** The checked numbers a generator works from. */
export interface ScheduleShape {
  /** The name the schedule will carry. */
  readonly name: string;
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly stages: number;
  readonly microbatches: number;
  /** `torch`: exactly the reference's order, faults included. */
  readonly compat: 'torch' | undefined;
  /** Durations, for schedules that depend on them. */
  readonly costs: Costs | undefined;
  /** Activation memory per rank, for schedules that depend on it. */
  readonly memoryLimit: number | readonly number[] | undefined;
}

/** The names of schedules. */
export type ScheduleName =
  | 'ForwardOnly'
  | 'GPipe'
  | '1F1B'
  | 'LoopedBFS'
  | 'Interleaved1F1B'
  | 'InterleavedZeroBubble'
  | 'ZBVZeroBubble'
  | 'DualPipeV'
  | 'ZBH1'
  | 'ZBH2'
  | 'ZB1P'
  | 'ZB2P'
  | 'VHalf'
  | 'VMin'
  | 'AdaptiveV';

/** Other names that schedules are found by. */
export type ScheduleAlias =
  | `Schedule${'GPipe' | '1F1B' | 'LoopedBFS' | 'Interleaved1F1B' | 'InterleavedZeroBubble'}`
  | `Schedule${'ForwardOnly' | 'ZBVZeroBubble' | 'DualPipeV' | 'VHalf' | 'VMin'}`
  | '_ScheduleForwardOnly'
  | '1F1B-I'
  | 'OneFOneB'
  | 'PipeDreamFlush'
  | 'ZeroBubbleH1'
  | 'ZeroBubbleH2'
  | 'ZBV'
  | 'VAdaptive';

/** One entry of the registry; `buildSchedule` checks the shape, calls `generate` and places the bubbles. */
export interface ScheduleDefinition {
  readonly name: ScheduleName;
  /** Other names it is found by, PyTorch's class name first if there is one. */
  readonly aliases: readonly ScheduleAlias[];
  /** One sentence for help and gallery. */
  readonly summary: string;
  readonly placement: PlacementStyle;
  /** Stages per rank: the default, and the least and most it takes. */
  readonly stagesPerRank: { readonly default: number; readonly least: number; readonly most: number };
  /** Whether the reference has it, that is, whether `compat: 'torch'` works. */
  readonly inTorch: boolean;
  /** Whether `costs` change the order. */
  readonly usesCosts: boolean;
  /** Whether `memoryLimit` changes the order. */
  readonly usesMemoryLimit: boolean;
  /** Whether it has backward actions. */
  readonly hasBackward: boolean;
  /** The order of every rank; bubbles only under `compat: 'torch'`. Throws BAD_SHAPE for shapes it cannot do. */
  generate(shape: ScheduleShape): Schedule;
}

/** Refuses a shape. */
export function refuseShape(shape: ScheduleShape, rule: string, wayOut: string): never {
  const { name, ranks, stagesPerRank, microbatches } = shape;
  throw new ScheduleError(
    'BAD_SHAPE',
    `${name}: ${rule} (ranks ${ranks}, stagesPerRank ${stagesPerRank}, microbatches ${microbatches}); ${wayOut}`,
    {
      name,
      ranks,
      stagesPerRank,
      microbatches,
    },
  );
}

/** Refuses fewer microbatches than stages where the reference is to be matched, which does not take them. */
export function checkTorchMicrobatches(shape: ScheduleShape): void {
  const { stages, microbatches, compat } = shape;
  if (compat !== 'torch' || microbatches >= stages) return;
  refuseShape(
    shape,
    `the reference needs at least as many microbatches as stages (${stages})`,
    `use ${stages} microbatches or leave compat out`,
  );
}
