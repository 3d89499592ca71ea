/** @file Costs checked and spread over the stages of a schedule: what the simulator and the searches compute with. */

import { checkChoice, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Code, type Layout, wordCode } from '../model/packed.ts';
import { collectiveTimes, messageOf } from './communication.ts';
import type { CoreCosts, Costs, MessageCosts, OverlapCosts, PerStage, Sharding } from './costs.ts';
import { spreadOver } from './spread.ts';

/** Costs spread over stages: what the simulator and the searches compute with. */
export interface CostTable {
  readonly F: Float64Array;
  readonly I: Float64Array;
  readonly W: Float64Array;
  readonly B: Float64Array;
  /** Time from the start of a full backward until the gradient of the input can be sent. */
  readonly inputGradient: Float64Array;
  /** Duration of a composite by the stage of its first part; null: the sum of its parts. */
  readonly overlap: Float64Array | null;
  readonly releaseParts: boolean;
  /** Delay by sending stage; 0 everywhere when `message` is given. */
  readonly comm: Float64Array;
  readonly message: MessageCosts | null;
  readonly unshard: Float64Array;
  readonly reshard: Float64Array;
  readonly reduceGrad: Float64Array;
  /** The rank's own time in them, by stage. */
  readonly overhead: { readonly send: Float64Array; readonly unshard: Float64Array; readonly reduceGrad: Float64Array };
  /** Null: every rank has a core of its own. */
  readonly cores: Required<CoreCosts> | null;
  readonly activation: Float64Array;
  readonly retained: Float64Array;
  readonly weightGradient: Float64Array;
  readonly parameters: Float64Array;
  readonly shards: number;
  readonly sharding: Sharding;
  readonly blocking: boolean;
}

const costNames = [
  'F',
  'I',
  'W',
  'B',
  'inputGradient',
  'overlap',
  'comm',
  'unshard',
  'reshard',
  'reduceGrad',
  'activation',
  'retained',
  'weightGradient',
  'parameters',
  'shards',
  'replicas',
  'sharding',
  'collective',
  'overhead',
  'cores',
  'communication',
] as const satisfies readonly (keyof Costs)[];

/**
 * Checks costs and spreads them over the stages of a schedule.
 * @example resolveCosts('simulate', { F: 1, B: 2 }, 4).I // Float64Array [1, 1, 1, 1]
 */
export function resolveCosts(caller: string, costs: Costs, stages: number): CostTable {
  if (typeof costs !== 'object' || costs === null) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: costs must be an object such as { F: 1, I: 1, W: 1 }, got ${show(costs)}`,
    );
  }
  checkOptions(caller, costs, costNames);
  checkChoice(caller, 'communication', costs.communication, ['overlap', 'blocking']);
  const spread = (name: string, value: PerStage | undefined, fallback: number): Float64Array =>
    spreadOver({ caller, name, value, fallback, stages });
  const half = costs.B === undefined ? null : spread('B', costs.B, 0).map((b) => b / 2);
  const I = costs.I === undefined && half !== null ? half : spread('I', costs.I, 1);
  const W = costs.W === undefined && half !== null ? half : spread('W', costs.W, 1);
  const retained = retainedOf(caller, costs.retained, stages);
  const overlap = overlapOf(caller, costs.overlap);
  const message = messageOf(caller, costs.comm);
  const { shards, sharding } = shardingOf(caller, costs);
  const collectives = collectiveTimes(caller, costs, { stages, shards, sharding });
  const B = costs.B === undefined ? I.map((i, s) => i + W[s]!) : spread('B', costs.B, 0);
  const overhead = costs.overhead ?? {};
  checkOptions(`${caller}: overhead`, overhead, ['send', 'unshard', 'reduceGrad']);
  return {
    F: spread('F', costs.F, 1),
    I,
    W,
    B,
    inputGradient: costs.inputGradient === undefined ? B : inputGradientOf(caller, costs.inputGradient, B),
    overlap: overlap.duration === undefined ? null : spread('overlap', overlap.duration, 0),
    releaseParts: overlap.release === 'parts',
    comm: spread('comm', message === null ? (costs.comm as PerStage | undefined) : 0, 0),
    message,
    unshard: costs.unshard === undefined ? collectives.unshard : spread('unshard', costs.unshard, 0),
    reshard: spread('reshard', costs.reshard, 0),
    reduceGrad: costs.reduceGrad === undefined ? collectives.reduceGrad : spread('reduceGrad', costs.reduceGrad, 0),
    overhead: {
      send: spread('overhead.send', overhead.send, 0),
      unshard: spread('overhead.unshard', overhead.unshard, 0),
      reduceGrad: spread('overhead.reduceGrad', overhead.reduceGrad, 0),
    },
    cores: coresOf(caller, costs.cores),
    activation: spread('activation', costs.activation, 1),
    retained,
    weightGradient: spread('weightGradient', costs.weightGradient, 0),
    parameters: spread('parameters', costs.parameters, 0),
    shards,
    sharding,
    blocking: costs.communication === 'blocking',
  };
}

/** The share of its activations that each stage keeps between the halves of a backward. */
function retainedOf(caller: string, value: PerStage | undefined, stages: number): Float64Array {
  const shares = spreadOver({ caller, name: 'retained', value, fallback: 0.5, stages });
  shares.forEach((share, stage) => {
    if (share > 1)
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: retained is a share from 0 to 1, got ${share} for stage ${stage}`,
      );
  });
  return shares;
}

function shardingOf(caller: string, costs: Costs): { readonly shards: number; readonly sharding: Sharding } {
  const shards = costs.shards ?? 1;
  if (typeof shards !== 'number' || !(shards >= 1))
    throw new ScheduleError('BAD_OPTION', `${caller}: shards must be at least 1, got ${show(shards)}`);
  checkChoice(caller, 'sharding', costs.sharding, ['optimizer', 'gradients', 'parameters']);
  return { shards, sharding: costs.sharding ?? 'parameters' };
}

/** When the gradient of the input of each stage is there in a full backward: not after its end. */
function inputGradientOf(caller: string, value: PerStage, B: Float64Array): Float64Array {
  const times = spreadOver({ caller, name: 'inputGradient', value, fallback: 0, stages: B.length });
  times.forEach((time, stage) => {
    if (time > B[stage]!)
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: inputGradient is ${time} for stage ${stage}, after the end of its full backward at ${B[stage]}; give at most B`,
      );
  });
  return times;
}

function coresOf(caller: string, cores: Costs['cores']): Required<CoreCosts> | null {
  if (cores === undefined) return null;
  if (typeof cores === 'object' && cores !== null) checkOptions(`${caller}: cores`, cores, ['count', 'ranks']);
  const { count, ranks = Number.POSITIVE_INFINITY } =
    typeof cores === 'object' && cores !== null ? cores : { count: cores };
  if (!(typeof count === 'number' && count > 0))
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: cores must be a number above 0, or { count, ranks } with such a count, got ${show(cores)}`,
    );
  if (ranks !== Number.POSITIVE_INFINITY && !(Number.isSafeInteger(ranks) && ranks >= 1))
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: cores.ranks must be an integer of at least 1, the ranks of one machine, got ${show(ranks)}`,
    );
  return { count, ranks };
}

function overlapOf(caller: string, overlap: Costs['overlap']): OverlapCosts {
  if (overlap === undefined) return {};
  if (typeof overlap === 'number' || Array.isArray(overlap)) return { duration: overlap as PerStage };
  if (typeof overlap === 'string') {
    checkChoice(caller, 'overlap', overlap, ['atomic', 'parts']);
    return { release: overlap };
  }
  if (typeof overlap !== 'object' || overlap === null) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: overlap must be a duration, 'atomic', 'parts' or { duration, release }, got ${show(overlap)}`,
    );
  }
  const given = overlap as OverlapCosts;
  checkOptions(`${caller}: overlap`, given, ['duration', 'release']);
  checkChoice(caller, 'overlap.release', given.release, ['atomic', 'parts']);
  return given;
}

/** Time of an F, I, W or B. */
export function computeCost(costs: CostTable, code: number, stage: number): number {
  return (code === Code.F ? costs.F : code === Code.B ? costs.B : code === Code.I ? costs.I : costs.W)[stage]!;
}

/** Time of a composite of plain words without waiting inside. */
export function compositeDuration(costs: CostTable, leaves: readonly number[], layout: Layout): number {
  if (leaves.length > 0 && costs.overlap !== null) return costs.overlap[layout.stage(leaves[0]!)]!;
  return leaves.reduce((sum, leaf) => sum + computeCost(costs, wordCode(leaf), layout.stage(leaf)), 0);
}

/** The factor by which the times of the parts of a composite are multiplied to make up its duration. */
export function partScale(costs: CostTable, leaves: readonly number[], layout: Layout): number {
  const plain = leaves.reduce((sum, leaf) => sum + computeCost(costs, wordCode(leaf), layout.stage(leaf)), 0);
  return costs.overlap === null || plain === 0 ? 1 : compositeDuration(costs, leaves, layout) / plain;
}
