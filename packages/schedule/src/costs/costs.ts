/** @file What actions cost, as a user writes it: times, messages and memory. */

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
