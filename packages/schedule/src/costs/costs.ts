/** @file What actions cost: times, messages and memory, as a user writes them and spread over stages and edges. */

import { checkChoice, checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Code, type Layout, wordCode } from '../model/packed.ts';
import type { StageEdge } from '../model/schedule.ts';

/** One number for all stages, or one per stage. */
export type PerStage = number | readonly number[];

/** How an overlapped composite takes its time. */
export interface OverlapCosts {
  /** Time of the whole composite, per stage of its first part; default: the sum of its parts. */
  readonly duration?: PerStage;
  /** `atomic`: all results appear at its end. `parts`: one part after the other, each result at that part's end. Default `atomic`. */
  readonly release?: 'atomic' | 'parts';
}

/** One direction between two ranks. */
export interface LinkCosts {
  readonly from: number;
  readonly to: number;
  readonly latency?: number;
  readonly bandwidth?: number;
}

/** Communication by size: a message takes `bytes / bandwidth` of its link, one after the other, and `latency` more to arrive. */
export interface MessageCosts {
  /** Bytes of the output of each stage. */
  readonly bytes: PerStage;
  /** Bytes of the gradient of the output of each stage; default: as many. */
  readonly gradientBytes?: PerStage;
  /** Time from the last byte leaving to the message being there; default 0. */
  readonly latency?: number;
  /** Bytes per unit of time; default: unlimited. */
  readonly bandwidth?: number;
  /** Links that differ from the rest. */
  readonly links?: readonly LinkCosts[];
}

/**
 * Collectives by size, as rings: gathering or reduce-scattering `bytes` over n ranks takes n - 1 rounds of
 * `latency + bytes / n / bandwidth`, an all-reduce twice as many.
 */
export interface CollectiveCosts {
  /** Bytes per unit of time that a rank sends; default: unlimited. */
  readonly bandwidth?: number;
  /** Time of a round beside its bytes; default 0. */
  readonly latency?: number;
  /** Bytes of a stage's gathered parameters; default: `parameters`. */
  readonly parameterBytes?: PerStage;
  /** Bytes of a stage's gradients as they are reduced; default: `weightGradient`, else as `parameterBytes`. */
  readonly gradientBytes?: PerStage;
}

/**
 * What communication takes of the rank that begins it (packing, copying, adding up between threads): it computes nothing
 * meanwhile. Whatever else the communication takes runs beside computing, after that.
 */
export interface OverheadCosts {
  /** A send; default 0. */
  readonly send?: PerStage;
  /** An UNSHARD; default 0. */
  readonly unshard?: PerStage;
  /** A REDUCE_GRAD; default 0. */
  readonly reduceGrad?: PerStage;
}

/** Machines of so many ranks each, rank after rank, and the cores that the ranks of a machine share. */
export interface CoreCosts {
  /** Cores of a machine; half a core is fine, where two pipelines run on it side by side. */
  readonly count: number;
  /** Ranks of a machine; default: all. */
  readonly ranks?: number;
}

/** What stays of a stage that is shared between ranks: see `Costs.sharding`. */
export type Sharding = 'optimizer' | 'gradients' | 'parameters';

/** Times in any one unit, memory in any one unit; everything has a default. */
export interface Costs {
  /** Forward; default 1. */
  readonly F?: PerStage;
  /** Input half of the backward; default: half of `B`, else 1. */
  readonly I?: PerStage;
  /** Weight half of the backward; default: half of `B`, else 1. */
  readonly W?: PerStage;
  /** Full backward; default `I + W`. */
  readonly B?: PerStage;
  /** Time from the start of a full backward until the gradient of the stage's input can be sent; at most `B`, which is the default. */
  readonly inputGradient?: PerStage;
  /** Overlapped composites; a number is their duration, a word their release. */
  readonly overlap?: PerStage | 'atomic' | 'parts' | OverlapCosts;
  /** Delay of a message between ranks: a number, one per sending stage, or by bytes; default 0. */
  readonly comm?: PerStage | MessageCosts;
  /** UNSHARD of a stage; default: by `collective`, else 0. */
  readonly unshard?: PerStage;
  /** RESHARD of a stage; default 0. */
  readonly reshard?: PerStage;
  /** REDUCE_GRAD of a stage; default: by `collective`, else 0. */
  readonly reduceGrad?: PerStage;
  /** UNSHARD and REDUCE_GRAD by bytes, bandwidth and latency. */
  readonly collective?: CollectiveCosts;
  /** What sends, UNSHARDs and REDUCE_GRADs take of their rank's own time; default 0. */
  readonly overhead?: OverheadCosts;
  /**
   * Cores that ranks share. While more ranks of a machine are busy than it has cores, all of them are slower by as much, and
   * times say what an action takes with a core of its own. Default: every rank has one.
   */
  readonly cores?: number | CoreCosts;
  /** Memory of one microbatch on a stage, from F until B or W; default 1. */
  readonly activation?: PerStage;
  /** Share of the activation that stays from I until W, 0 to 1; default 0.5. */
  readonly retained?: PerStage;
  /** Memory of a stage's weight gradient, from its first B or W to the end; default 0. */
  readonly weightGradient?: PerStage;
  /** Memory of a stage's parameters; default 0. */
  readonly parameters?: PerStage;
  /** Ranks that share a stage: 1/shards stay, and the whole is there from UNSHARD to RESHARD; default 1 (all stay). */
  readonly shards?: number;
  /** Groups of `shards` ranks that hold the same: gradients are summed over them, too; default 1. */
  readonly replicas?: number;
  /** What is shared: the optimizer's states, also gradients (1/shards stay after REDUCE_GRAD), also parameters; default `parameters`. */
  readonly sharding?: Sharding;
  /** `overlap`: sends, receives and collectives run beside compute. `blocking`: the rank waits for each. Default `overlap`. */
  readonly communication?: 'overlap' | 'blocking';
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
  const retained = spread('retained', costs.retained, 0.5);
  retained.forEach((share, stage) => {
    if (share > 1)
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: retained is a share from 0 to 1, got ${share} for stage ${stage}`,
      );
  });
  const overlap = overlapOf(caller, costs.overlap);
  const message = messageOf(caller, costs.comm);
  const shards = costs.shards ?? 1;
  if (typeof shards !== 'number' || !(shards >= 1))
    throw new ScheduleError('BAD_OPTION', `${caller}: shards must be at least 1, got ${show(shards)}`);
  checkChoice(caller, 'sharding', costs.sharding, ['optimizer', 'gradients', 'parameters']);
  const sharding = costs.sharding ?? 'parameters';
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

/** Times of UNSHARD and REDUCE_GRAD by `costs.collective`; 0 without it. */
function collectiveTimes(
  caller: string,
  costs: Costs,
  { stages, shards, sharding }: { readonly stages: number; readonly shards: number; readonly sharding: Sharding },
): { readonly unshard: Float64Array; readonly reduceGrad: Float64Array } {
  const replicas = costs.replicas ?? 1;
  if (!(typeof replicas === 'number' && Number.isSafeInteger(replicas) && replicas >= 1))
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: replicas must be an integer of at least 1, got ${show(replicas)}`,
    );
  const none = new Float64Array(stages);
  const given = costs.collective;
  if (given === undefined) return { unshard: none, reduceGrad: none };
  checkOptions(`${caller}: collective`, given, ['bandwidth', 'latency', 'parameterBytes', 'gradientBytes']);
  checkLink(`${caller}: collective`, given);
  const { bandwidth = Number.POSITIVE_INFINITY, latency = 0 } = given;
  const bytes = (name: string, value: PerStage | undefined): Float64Array =>
    spreadOver({ caller, name, value, fallback: 0, stages });
  const parameters = bytes('collective.parameterBytes', given.parameterBytes ?? costs.parameters);
  const gradients = bytes(
    'collective.gradientBytes',
    given.gradientBytes ?? costs.weightGradient ?? given.parameterBytes ?? costs.parameters,
  );
  const rounds = (n: number, size: number): number => (n - 1) * (latency + size / n / bandwidth);
  return {
    unshard: parameters.map((size) => rounds(shards, size)),
    // Without shards of gradients everything is summed in full; with them each rank keeps its part, summed over replicas.
    reduceGrad: gradients.map((size) =>
      sharding === 'optimizer'
        ? 2 * rounds(shards * replicas, size)
        : rounds(shards, size) + 2 * rounds(replicas, size / shards),
    ),
  };
}

interface Spread {
  readonly caller: string;
  readonly name: string;
  readonly value: PerStage | undefined;
  readonly fallback: number;
  readonly stages: number;
}

function spreadOver({ caller, name, value, fallback, stages }: Spread): Float64Array {
  if (value === undefined) return new Float64Array(stages).fill(fallback);
  if (typeof value === 'number') {
    checkCost(caller, name, value);
    return new Float64Array(stages).fill(value);
  }
  if (!Array.isArray(value) && !(value instanceof Float64Array)) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: ${name} must be a number or an array of one number per stage, got ${show(value)}`,
    );
  }
  if (value.length !== stages) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: ${name} has ${value.length} values for ${stages} stages; give one number, or one per stage`,
    );
  }
  value.forEach((cost, stage) => {
    checkCost(caller, `${name}[${stage}]`, cost);
  });
  return Float64Array.from(value);
}

function checkCost(caller: string, name: string, cost: unknown): void {
  if (typeof cost === 'number' && Number.isFinite(cost) && cost >= 0) return;
  throw new ScheduleError('BAD_OPTION', `${caller}: ${name} must be a finite number of at least 0, got ${show(cost)}`);
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

function messageOf(caller: string, comm: Costs['comm']): MessageCosts | null {
  if (
    comm === undefined ||
    typeof comm !== 'object' ||
    comm === null ||
    Array.isArray(comm) ||
    comm instanceof Float64Array
  )
    return null;
  const given = comm as MessageCosts;
  checkOptions(`${caller}: comm`, given, ['bytes', 'gradientBytes', 'latency', 'bandwidth', 'links']);
  if (given.bytes === undefined)
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: comm.bytes is missing; give the bytes of a stage's output, or a plain number as delay`,
    );
  checkLink(`${caller}: comm`, given);
  (given.links ?? []).forEach((link, i) => {
    checkOptions(`${caller}: comm.links[${i}]`, link, ['from', 'to', 'latency', 'bandwidth']);
    if (!Number.isSafeInteger(link.from) || !Number.isSafeInteger(link.to)) {
      throw new ScheduleError(
        'BAD_OPTION',
        `${caller}: comm.links[${i}] needs the ranks \`from\` and \`to\`, got ${show(link.from)} and ${show(link.to)}`,
      );
    }
    checkLink(`${caller}: comm.links[${i}]`, link);
  });
  return given;
}

function checkLink(caller: string, link: { readonly latency?: number; readonly bandwidth?: number }): void {
  if (link.latency !== undefined) checkCost(caller, 'latency', link.latency);
  if (link.bandwidth !== undefined && !(typeof link.bandwidth === 'number' && link.bandwidth > 0)) {
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: bandwidth must be above 0 bytes per unit of time, got ${show(link.bandwidth)}`,
    );
  }
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

/** What the times of the parts of a composite are multiplied with to make up its duration. */
export function partScale(costs: CostTable, leaves: readonly number[], layout: Layout): number {
  const plain = leaves.reduce((sum, leaf) => sum + computeCost(costs, wordCode(leaf), layout.stage(leaf)), 0);
  return costs.overlap === null || plain === 0 ? 1 : compositeDuration(costs, leaves, layout) / plain;
}

/** Messages over the edges of the stage graph; forward along the edge, backward against it. */
export interface EdgeCosts {
  /** Time an edge's message keeps its link busy. */
  readonly forwardOccupancy: Float64Array;
  readonly backwardOccupancy: Float64Array;
  /** Time after that until it has arrived. */
  readonly forwardLatency: Float64Array;
  readonly backwardLatency: Float64Array;
  /** Dense number of the link (pair of ranks, one direction) an edge uses. */
  readonly forwardLink: Int32Array;
  readonly backwardLink: Int32Array;
  readonly links: number;
}

/** Spreads communication over edges; edges inside one rank cost nothing. */
export function edgeCosts(
  caller: string,
  table: CostTable,
  graph: { readonly edges: readonly StageEdge[]; readonly stageToRank: readonly number[] },
): EdgeCosts {
  const { edges, stageToRank } = graph;
  const stages = stageToRank.length;
  const { message } = table;
  const bytes =
    message === null ? null : spreadOver({ caller, name: 'comm.bytes', value: message.bytes, fallback: 0, stages });
  const gradientBytes =
    message === null
      ? null
      : spreadOver({
          caller,
          name: 'comm.gradientBytes',
          value: message.gradientBytes ?? message.bytes,
          fallback: 0,
          stages,
        });
  const special = new Map((message?.links ?? []).map((link) => [`${link.from}>${link.to}`, link]));
  const linkNumbers = new Map<string, number>();
  const direction = (): { occupancy: Float64Array; latency: Float64Array; link: Int32Array } => ({
    occupancy: new Float64Array(edges.length),
    latency: new Float64Array(edges.length),
    link: new Int32Array(edges.length),
  });
  const forward = direction();
  const backward = direction();
  edges.forEach(([from, to], e) => {
    const a = stageToRank[from]!;
    const b = stageToRank[to]!;
    if (a === b) return;
    for (const [way, source, target, size, sender] of [
      [forward, a, b, bytes?.[from], from],
      [backward, b, a, gradientBytes?.[from], to],
    ] as const) {
      const key = `${source}>${target}`;
      if (!linkNumbers.has(key)) linkNumbers.set(key, linkNumbers.size);
      way.link[e] = linkNumbers.get(key)!;
      if (message === null || size === undefined) {
        way.latency[e] = table.comm[sender]!;
        continue;
      }
      const link = special.get(key);
      const bandwidth = link?.bandwidth ?? message.bandwidth;
      way.occupancy[e] = bandwidth === undefined ? 0 : size / bandwidth;
      way.latency[e] = link?.latency ?? message.latency ?? 0;
    }
  });
  return {
    forwardOccupancy: forward.occupancy,
    backwardOccupancy: backward.occupancy,
    forwardLatency: forward.latency,
    backwardLatency: backward.latency,
    forwardLink: forward.link,
    backwardLink: backward.link,
    links: linkNumbers.size,
  };
}
