/** @file All that one step works on and holds; gone when it ends. */
import type { nn, Tensor } from '@pipewright/torch';
import type { Microbatches } from '../../microbatch/index.ts';
import type { DataParallel } from '../../parallel/data-parallel.ts';
import type { Recorder } from '../../recording/recorder.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import { type Place, rankStatus } from '../../status/rank-status.ts';
import type { ActionHook, AnyRuntimeOptions, LossCaller, StepOptions } from '../options.ts';
import type { PostedReceive, Transport } from '../transport/transport.ts';
import type { Link } from './links.ts';
import type { LossGradSource } from './loss-grads.ts';
import type { PlannedAction } from './planned-action.ts';

/** What is the same in all steps of a runtime. */
export interface RankContext {
  readonly rank: number;
  readonly options: AnyRuntimeOptions;
  readonly loss: LossCaller | null;
  /** Null where one rank is alone. */
  readonly transport: Transport | null;
  /** Null where stages are neither replicated nor sharded. */
  readonly parallel: DataParallel | null;
  readonly recorder: Recorder | null;
  readonly hooks: readonly ActionHook[];
  /** Whether this rank may refuse a step: the others learn of it by messages, replicas beforehand. */
  readonly mayRefuse: boolean;
  /** What forwards draw by, and how many microbatches of the whole batch other replicas have before this one's; null: as ever. */
  readonly random: { readonly source: nn.NamedRandom; readonly before: number } | null;
  /** Called when a message has been taken: what is computed next uses it. */
  readonly received: () => void;
}

/** What a step works with. */
export interface StepWork {
  readonly training: boolean;
  readonly batch: Microbatches;
  readonly options: StepOptions;
  readonly weights: LossWeights;
}

/** The weight of each microbatch in the loss. */
export interface LossWeights {
  readonly values: readonly number[];
  /** Where they are from: options, the rows that this rank was given, or nothing, so that all are taken for equal. */
  readonly from: 'options' | 'rows' | 'nothing';
  /** What each would be if all were equal. */
  readonly equal: number;
}

/** One step on one rank. */
export class StepState {
  readonly context: RankContext;
  readonly lossGrads: LossGradSource;
  readonly training: boolean;
  readonly batch: Microbatches;
  readonly options: StepOptions;
  /** Weight of each microbatch in the loss. */
  readonly weights: number[];
  private readonly given: LossWeights;
  /** By microbatch, on the rank with the last stage. */
  readonly losses: (Tensor | undefined)[];
  /** The losses as numbers, once they were read: reading them takes as long as a short action. */
  lossValues: readonly number[] | null = null;
  readonly outputs: unknown[] = [];
  /** Values between the forward that made them and their send, by the message's index. */
  readonly outgoing: (readonly unknown[] | undefined)[] = [];
  /** Receives between where they were posted and the action that takes them, by the message's index. */
  readonly posted: (PostedReceive | undefined)[] = [];
  /** The entry of the UNSHARD that gathered a stage last, by stage. */
  readonly gathering: Map<number, number> = new Map();
  /** Where the memory begins that the modules of stages hold besides parameters, once that was asked for. */
  readonly heldMemory: Map<PipelineStage, Set<bigint>> = new Map();
  /** Whether the inputs of the forward under way stay with its stage: it computes beside something that could take their memory. */
  keepsInputs = false;
  /** Whether a message was sent or taken. */
  hasExchanged = false;
  /** The action under way, a part of another rather than the whole. */
  current: PlannedAction | null = null;
  /** The action that has its messages already: a custom function has looked at them. */
  taken: PlannedAction | null = null;
  private awaited: { readonly link: Link; readonly place: Place } | null = null;

  constructor(context: RankContext, { training, batch, options, weights }: StepWork, lossGrads: LossGradSource) {
    this.context = context;
    this.lossGrads = lossGrads;
    this.training = training;
    this.batch = batch;
    this.options = options;
    this.given = weights;
    this.weights = [...weights.values];
    this.losses = new Array<Tensor | undefined>(this.weights.length);
  }

  /** The weight of a microbatch as an earlier stage tells it, for ranks that were given no rows. */
  learnWeight(m: number, weight: number | undefined): void {
    if (weight !== undefined && this.given.from === 'nothing') this.weights[m] = weight;
  }

  /** The weight of a microbatch that later stages cannot know: undefined where it is what they take it for. */
  weightToTell(m: number): number | undefined {
    const weight = this.weights[m];
    return this.training && this.given.from !== 'options' && weight !== this.given.equal ? weight : undefined;
  }

  /** The mean of the losses; null where there are none. */
  meanLoss(): number | null {
    const values: number[] = [];
    for (const loss of this.losses) if (loss !== undefined) values.push(Number(loss.item()));
    this.lossValues = values;
    return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
  }

  /** What is being waited for, in words; null while nothing is. */
  get waitingFor(): string | null {
    return (
      this.awaited &&
      `${this.awaited.place.action} from rank ${this.awaited.link.rank}, stage ${this.awaited.link.stage}`
    );
  }

  /** The rank begins to wait for the message of a link. */
  beginWait(link: Link, place: Place): void {
    this.awaited = { link, place };
    rankStatus.set(place);
  }

  /** The message is there. */
  endWait(): void {
    this.awaited = null;
    this.context.received();
    if (this.current !== null) rankStatus.set(this.current.place);
  }
}
