/** @file What the kinds of actions do. */
import { autocast, type Device, type DType, fullLike, keep, scope, Tensor, unscoped } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { debugInfo } from '../base/describe.ts';
import { PipelineError } from '../base/errors.ts';
import { mapTensors, tensorsIn } from '../base/tree.ts';
import type { Microbatches } from '../microbatch/index.ts';
import type { Recorder } from '../recording/recorder.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import { pick } from '../stage/wiring.ts';
import { type Place, rankStatus } from '../status/rank-status.ts';
import { handOver, recvGrads, recvValues, sendGrads, sendValues } from './messages.ts';
import type { LossFunction, RuntimeOptions, StepOptions } from './options.ts';
import type { Overlap } from './overlap/overlap.ts';
import { backwardTag, forwardTag, type Link, type PlannedAction, type StageLinks } from './plan.ts';

/** What one step works on. */
export interface StepState {
  readonly training: boolean;
  readonly batch: Microbatches;
  readonly options: StepOptions;
  /** By microbatch, on the rank with the last stage. */
  readonly losses: (Tensor | undefined)[];
  readonly outputs: unknown[];
  /** Outputs on their way to other ranks, one list per link, by stage and microbatch. */
  readonly outbox: Map<number, (readonly unknown[])[]>;
  /** Weight of each microbatch in the loss. */
  readonly weights: readonly number[];
  /** Whether gradients may leave in the middle of a backward, as soon as they are known. */
  readonly sendsEarly: boolean;
  /** Index of the sending action that the last backward has done in its middle; -1 for none. */
  sentEarly: number;
}

/** The gradient of a microbatch's loss, and what it was made for. */
interface LossGrad {
  readonly grad: Tensor;
  readonly weight: number;
  readonly dtype: DType;
  readonly device: Device;
  readonly ndim: number;
}

/** Performs actions; holds nothing of a step. */
export class Actions {
  private readonly options: RuntimeOptions;
  private readonly microbatches: number;
  private readonly recorder: Recorder | null;
  private readonly overlap: Overlap;
  /** The gradients of the losses, by microbatch: they are mostly the same in every step. */
  private readonly lossGrads: LossGrad[] = [];
  private wait: Link | null = null;
  private waitPlace: Place = { action: '' };
  private place: Place = { action: '' };

  constructor(
    options: RuntimeOptions,
    microbatches: number,
    watchers: { recorder: Recorder | null; overlap: Overlap },
  ) {
    this.options = options;
    this.microbatches = microbatches;
    this.recorder = watchers.recorder;
    this.overlap = watchers.overlap;
  }

  /** What is being waited for, in words; null while nothing is. */
  get waitingFor(): string | null {
    return this.wait && `${this.waitPlace.action} from rank ${this.wait.rank}, stage ${this.wait.stage}`;
  }

  /** Performs one plain action. */
  perform(planned: PlannedAction, state: StepState): void {
    const { kind, microbatch: m } = planned;
    const links = planned.links as StageLinks;
    this.place = planned.place;
    switch (kind) {
      case 'F':
        scope(() => this.forward(links, planned, state));
        break;
      case 'B':
        scope(() => this.backward(links, planned, state));
        break;
      case 'I':
        scope(() => this.backward(links, planned, state));
        break;
      case 'W':
        scope(() => links.stage.backwardWeightOneChunk(m));
        break;
      case 'SEND_F':
        this.sendForward(links, m, state);
        break;
      case 'SEND_B':
        this.sendBackward(links, m);
        break;
      case 'RECV_F': // messages come by themselves and are taken where they are needed
      case 'RECV_B':
      case 'UNSHARD':
      case 'RESHARD':
      case 'REDUCE_GRAD':
        break;
      default:
        throw new PipelineError('BAD_SCHEDULE', `${show(kind)} is no kind of action`);
    }
  }

  private beginWait(link: Link, place: Place): void {
    this.wait = link;
    this.waitPlace = place;
    rankStatus.set(place);
  }

  private endWait(): void {
    this.wait = null;
    this.overlap.received?.();
    rankStatus.set(this.place);
  }

  private forward({ stage, from, to }: StageLinks, { microbatch: m, waits }: PlannedAction, state: StepState): void {
    for (let i = 0; i < from.length; i++) {
      const link = from[i] as Link;
      if (link.channel === null) continue; // handed over by the stage itself
      this.beginWait(link, waits[i] as Place);
      const { values, leaves } = recvValues(link.channel, forwardTag(link, m));
      this.endWait();
      stage.setInput(m, link.stage, values, keep(leaves));
      this.recorder?.received(values);
    }
    const { args, kwargs } = state.batch;
    const run = (): unknown => {
      const result = stage.forwardOneChunk(m, args[m], kwargs[m]);
      if (stage.isLast) this.takeOutput(stage, m, result, state);
      return result;
    };
    const output = this.options.autocast === undefined ? run() : autocast(this.options.autocast, run);
    let outbox: (readonly unknown[])[] | null = null;
    for (const link of to) {
      const values = pick(output, link.wanted, stage.stageIndex, link.stage);
      // Aliases: what the module returned may be its own (an input, a parameter).
      const own = keep(aliases(values));
      if (state.training) stage.setOutgoing(m, link.stage, withGrad(own));
      if (link.local === null) (outbox ??= []).push(own);
      else {
        const { values: handed, leaves } = keep(handOver(own));
        link.local.setInput(m, stage.stageIndex, handed, leaves);
        release(own, state.training);
      }
    }
    if (outbox !== null) state.outbox.set(stage.stageIndex * this.microbatches + m, outbox);
    if (state.training) stage.releaseInputs(m);
    else stage.forget(m);
  }

  /** On the last stage: the loss, and what the user wants to see. */
  private takeOutput(stage: PipelineStage, m: number, output: unknown, state: StepState): void {
    const { target } = state.batch;
    const { lossFn } = this.options;
    if (lossFn !== undefined && (target !== undefined || lossFn.length < 2)) {
      const loss = lossOf(lossFn, {
        stage: stage.stageIndex,
        microbatch: m,
        output,
        target: target?.[m],
        options: state.options.lossKwargs,
      });
      if (!(loss instanceof Tensor) || loss.numel() !== 1)
        throw new PipelineError(
          'BAD_LOSS',
          `lossFn returned ${loss instanceof Tensor ? `a tensor of shape [${loss.shape.join(', ')}]` : show(loss)} for microbatch ${m}; return a tensor of one element`,
        );
      if (state.training) stage.setLoss(m, keep(loss.alias()));
      state.losses[m] = keep(loss.detach());
    }
    const { returnOutputs, onOutput } = state.options;
    if (returnOutputs === false && onOutput === undefined) return;
    const seen = mapTensors(output, (tensor) => tensor.detach());
    if (returnOutputs !== false) state.outputs[m] = keep(seen);
    onOutput?.(seen, m);
  }

  private sendForward({ stage, to }: StageLinks, m: number, state: StepState): void {
    const key = stage.stageIndex * this.microbatches + m;
    const outbox = state.outbox.get(key);
    if (outbox === undefined)
      throw new PipelineError(
        'OUT_OF_ORDER',
        `stage ${stage.stageIndex} has nothing to send for microbatch ${m}: its forward has not run, or it was sent already`,
      );
    state.outbox.delete(key);
    let next = 0;
    for (const link of to) {
      if (link.channel === null) continue;
      const values = outbox[next++] as readonly unknown[];
      sendValues(link.channel, forwardTag(link, m), values);
      this.recorder?.sent(values);
      release(values, state.training);
    }
  }

  /** Begins a full backward on a thread of its own, with so many cores; performing it then waits for it. */
  start(planned: PlannedAction, state: StepState, threads: number): void {
    const links = planned.links as StageLinks;
    this.place = planned.place;
    scope(() => {
      this.receiveGrads(links, planned);
      links.stage.startBackward(planned.microbatch, { lossGrad: this.lossGradOf(links, planned, state), threads });
    });
  }

  private receiveGrads({ stage, to }: StageLinks, { microbatch: m, waits }: PlannedAction): void {
    for (let i = 0; i < to.length; i++) {
      const link = to[i] as Link;
      const count = link.channel === null ? 0 : stage.expectedGrads(m, link.stage);
      if (link.channel === null || count === 0) continue;
      this.beginWait(link, waits[i] as Place);
      const grads = recvGrads(link.channel, backwardTag(link, m), count);
      this.endWait();
      this.recorder?.received(grads);
      stage.setOutputGrads(m, link.stage, grads);
    }
  }

  private backward(links: StageLinks, planned: PlannedAction, state: StepState): void {
    const { stage, from } = links;
    const { kind, microbatch: m, sending } = planned;
    if (!stage.hasStarted(m)) this.receiveGrads(links, planned);
    const send = (): void => {
      state.sentEarly = sending as number;
      if (this.recorder === null) this.sendBackward(links, m);
      else this.recorder.within(sending as number, () => this.sendBackward(links, m));
    };
    stage.backwardOneChunk(m, {
      full: kind === 'B',
      lossGrad: this.lossGradOf(links, planned, state),
      send: sending !== null && state.sendsEarly ? send : undefined,
    });
    for (const link of from) {
      if (link.local === null) continue;
      link.local.setOutputGrads(m, stage.stageIndex, stage.takeInputGrads(m, link.stage));
    }
  }

  private sendBackward({ stage, from }: StageLinks, m: number): void {
    for (const link of from) {
      if (link.channel === null) continue;
      const grads = stage.takeInputGrads(m, link.stage);
      sendGrads(link.channel, backwardTag(link, m), grads);
      this.recorder?.sent(grads);
      for (const grad of grads) grad?.dispose();
    }
  }

  /** The gradient of a loss: its weight, times the scaler's scale. */
  private lossGradOf({ stage }: StageLinks, { microbatch: m }: PlannedAction, state: StepState): Tensor | undefined {
    const loss = stage.isLast ? state.losses[m] : undefined;
    if (loss === undefined) return undefined;
    const weight = state.weights[m] as number;
    const { dtype, device, ndim } = loss;
    let known = this.lossGrads[m];
    if (known?.weight !== weight || known.dtype !== dtype || known.device !== device || known.ndim !== ndim) {
      known?.grad.dispose();
      known = { grad: unscoped(() => fullLike(loss, weight)), weight, dtype, device, ndim };
      this.lossGrads[m] = known;
    }
    return this.options.scaler === undefined ? known.grad : this.options.scaler.scale(known.grad);
  }

  /** Frees the tensors made once and kept. */
  dispose(): void {
    for (const { grad } of this.lossGrads.splice(0)) grad.dispose();
  }
}

/** Calls the loss; where it throws, the error says on what. */
function lossOf(
  lossFn: LossFunction,
  of: { stage: number; microbatch: number; output: unknown; target: unknown; options: unknown },
): unknown {
  const { stage, microbatch, output, target, options } = of;
  try {
    const loss = lossFn as (output: unknown, target: unknown, options?: unknown) => unknown;
    return options === undefined ? loss(output, target) : loss(output, target, options);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new PipelineError(
      'LOSS_FAILED',
      `stage ${stage}, loss of microbatch ${microbatch}: ${why} (output: ${debugInfo(output)}; target: ${debugInfo(target)})`,
      { stage, microbatch },
      { cause },
    );
  }
}

/** The same values under handles of our own. */
function aliases(values: readonly unknown[]): unknown[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return [only.alias()];
  return mapTensors(values, (tensor) => tensor.alias()) as unknown[];
}

/** The tensors that gradients will come back for. */
function withGrad(values: readonly unknown[]): Tensor[] {
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return only.requiresGrad ? [only] : [];
  return tensorsIn(values).filter((tensor) => tensor.requiresGrad);
}

/** Frees values that have gone on their way, except those that the backward begins with. */
function release(values: readonly unknown[], training: boolean): void {
  const [only] = values;
  const tensors = values.length === 1 && only instanceof Tensor ? [only] : tensorsIn(values);
  for (const tensor of tensors) if (!training || !tensor.requiresGrad) tensor.dispose();
}
