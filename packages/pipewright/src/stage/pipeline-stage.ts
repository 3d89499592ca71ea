/** @file A stage: one piece of the model on one rank, and what it holds for the microbatches under way. */
import {
  checkpoint,
  type Device,
  type distributed,
  empty,
  type GradientTarget,
  keep,
  nn,
  scope,
  startBackward,
  Tensor,
} from '@pipewright/torch';
import { callForward } from '../base/call-forward.ts';
import { checkArgument, checkCount, checkOptions, show } from '../base/checks.ts';
import { debugInfo, describeTensor } from '../base/describe.ts';
import { PipelineError } from '../base/errors.ts';
import { tensorsIn } from '../base/tree.ts';
import { Chunk } from './chunk.ts';
import { computeBackward, Once } from './chunk-backward.ts';
import { type StageNames, wholeName } from './names.ts';
import {
  checkDeclared,
  checkInputGrad,
  computationFailed,
  outOfOrder,
  repeated,
  type StagePlace,
} from './stage-errors.ts';
import { checkStageOptions, checkTies, type PipelineStageOptions, stageOptionNames } from './stage-options.ts';
import { MicrobatchRuns, Statistics } from './statistics.ts';
import { assemble, checkInputs, defaultInputs, type StageDescription, type StageInput, sourcesOf } from './wiring.ts';

/** The named inputs of `passStageAndMicrobatchIndices`. */
const indexNames = ['pipelineStageIndex', 'pipelineMicrobatchIndex'] as const;

/** The options of `backwardOneChunk`. */
export interface StageBackwardOptions {
  /** Both halves at once (default), or only the input half, which the stages before wait for. */
  readonly full?: boolean | undefined;
  /** The gradient of the loss: its share in the whole. Default 1. */
  readonly lossGrad?: Tensor | undefined;
  /** Called once, as soon as the gradients of the inputs are there: before those of the weights are computed, if that is possible. */
  readonly inputsReady?: (() => void) | undefined;
}

/** What a backward starts from. */
export interface BackwardStart {
  /** The loss, and the edges of the graph that gradients from other stages go to. */
  readonly outputs: readonly GradientTarget[];
  /** Their gradients. */
  readonly outputGrads: readonly (Tensor | null)[];
  /** The tensors whose gradients other stages wait for. */
  readonly inputs: readonly Tensor[];
}

/** The options of `startBackward`. */
export interface StartOptions {
  readonly lossGrad?: Tensor | undefined;
  /** Cores for its operators. */
  readonly threads?: number | undefined;
}

/**
 * One piece of the model.
 *
 * @example const stage = new PipelineStage(blocks, 1, 4) // stage 1 of 4
 */
export class PipelineStage {
  readonly module: nn.Module;
  readonly stageIndex: number;
  readonly numStages: number;
  readonly group: distributed.ProcessGroup | undefined;
  readonly inputs: readonly StageInput[];
  readonly kwargs: readonly string[] | undefined;
  readonly ties: Readonly<Record<string, string>>;
  readonly names: StageNames | undefined;
  readonly checkpoint: boolean;
  readonly passStageAndMicrobatchIndices: boolean;
  readonly dwBuilder: (() => () => void) | undefined;
  /** The stages that inputs come from, ascending. */
  readonly sources: readonly number[];
  private readonly givenDevice: string | null;
  private readonly inputArgs: readonly string[] | null;
  private readonly outputArgs: readonly string[] | null;
  private readonly chunks = new Map<number, Chunk>();
  private readonly statistics: Statistics;

  /** The options may be the device alone, as in PyTorch: `new PipelineStage(blocks, 1, 4, 'cuda:1')`. */
  constructor(module: nn.Module, stageIndex: number, numStages: number, given: PipelineStageOptions | Device = {}) {
    const options: PipelineStageOptions = typeof given === 'string' ? { device: given } : given;
    checkOptions('PipelineStage', options, stageOptionNames);
    if (!(module instanceof nn.Module))
      throw new PipelineError(
        'BAD_STAGE',
        `PipelineStage: the first argument must be an nn.Module, got ${show(module)}`,
      );
    if (!Number.isInteger(numStages) || numStages < 1)
      throw new PipelineError('BAD_STAGE', `PipelineStage: ${String(numStages)} is not a number of stages`);
    if (!Number.isInteger(stageIndex) || stageIndex < 0 || stageIndex >= numStages)
      throw new PipelineError(
        'BAD_STAGE',
        `PipelineStage: stage ${String(stageIndex)} of ${numStages} stages; stages are numbered 0 to ${numStages - 1}`,
        { stage: stageIndex },
      );
    if (options.outputArgs !== undefined && options.inputArgs === undefined)
      throw new PipelineError(
        'BAD_STAGE',
        `PipelineStage ${stageIndex}: outputArgs without inputArgs; give both, or none`,
      );
    checkStageOptions(stageIndex, options);
    this.module = module;
    this.statistics = new Statistics(module);
    this.stageIndex = stageIndex;
    this.numStages = numStages;
    this.group = options.group;
    this.inputs = options.inputs ?? defaultInputs(stageIndex);
    checkInputs(stageIndex, this.inputs);
    this.sources = sourcesOf(this.inputs);
    this.kwargs = options.kwargs;
    this.names = options.names;
    this.checkpoint = options.checkpoint === true;
    this.passStageAndMicrobatchIndices = options.passStageAndMicrobatchIndices === true;
    this.dwBuilder = options.dwBuilder;
    this.inputArgs = declared(options.inputArgs);
    this.outputArgs = declared(options.outputArgs);
    this.ties = options.ties ?? {};
    checkTies(stageIndex, this.ties, module);
    const { device } = options;
    if (device !== undefined && !module.parameters().some((parameter) => parameter.isMeta)) module.to(device);
    this.givenDevice = device === undefined ? null : scope(() => String(empty([0], { device }).device));
  }

  /** The device it computes on: the GPU of its parameters and buffers, else the one that was given, else the CPU. */
  get device(): string {
    const devices = [...this.module.parameters(), ...this.module.buffers()].map(({ device }) => String(device));
    return devices.find((device) => device.startsWith('cuda')) ?? this.givenDevice ?? 'cpu';
  }

  /** The module, under PyTorch's name. */
  get submod(): nn.Module {
    return this.module;
  }

  /** Whether this is stage 0. */
  get isFirst(): boolean {
    return this.stageIndex === 0;
  }

  /** Whether no stage comes after it. */
  get isLast(): boolean {
    return this.stageIndex === this.numStages - 1;
  }

  /** The name in the whole model of what the module calls `name`. @example stage.wholeName('0.weight') // 'blocks.4.weight' */
  wholeName(name: string): string {
    return wholeName(this.names, name);
  }

  /** The description of the stage for other ranks. */
  describe(): StageDescription {
    const { stageIndex: stage, inputs, ties, inputArgs, outputArgs } = this;
    return { stage, inputs: inputs.map((input) => ({ ...input })), ties, inputArgs, outputArgs };
  }

  // --- forward -------------------------------------------------------------------------------------------------------

  /** Takes what another stage sent for a microbatch; `leaves` are the tensors that need gradients. */
  setInput(microbatch: number, source: number, values: readonly unknown[], leaves: readonly Tensor[]): void {
    const chunk = this.chunkOf(microbatch);
    if (!this.sources.includes(source))
      throw new PipelineError(
        'BAD_WIRING',
        `stage ${this.stageIndex} takes nothing from stage ${show(source)}; its inputs come from ${this.sources.join(', ') || 'the step itself'}`,
        this.at(microbatch),
      );
    if (chunk.from(source) !== undefined) throw repeated(this.at(microbatch), 'the input', ` from stage ${source}`);
    chunk.arrived.push({ source, values, leaves, grads: null });
  }

  /**
   * Runs the module on one microbatch: on `args` where the stage has no sources, else on what arrived for it.
   * Returns what the module returned.
   */
  forwardOneChunk(microbatch: number, args: readonly unknown[] = [], kwargs: Record<string, unknown> = {}): unknown {
    const chunk = this.chunkOf(microbatch);
    const inputs = this.inputsOf(microbatch, args, kwargs);
    let output: unknown;
    try {
      output = this.checkpoint ? this.checkpointed(chunk, inputs) : callForward(this.module, inputs);
    } catch (cause) {
      throw computationFailed(this.at(microbatch), 'forward', cause, `inputs: ${debugInfo(inputs)}`);
    }
    chunk.hasRun = true;
    if (this.outputArgs !== null) checkDeclared(this.stageIndex, 'outputs', this.outputArgs, [output]);
    return output;
  }

  private checkpointed(chunk: Chunk, inputs: readonly unknown[]): unknown {
    const runs = new MicrobatchRuns(this.statistics);
    chunk.runs = runs;
    return checkpoint((...given: unknown[]) => runs.run(given), inputs as unknown[]);
  }

  /** What the module is called with for a microbatch: positional inputs, and the named ones as an object after them. */
  inputsOf(
    microbatch: number,
    args: readonly unknown[] = [],
    kwargs: Record<string, unknown> = {},
  ): readonly unknown[] {
    const chunk = this.chunkOf(microbatch);
    checkArgument('forwardOneChunk', Array.isArray(args), ['args', args], 'an array of inputs');
    checkArgument('forwardOneChunk', typeof kwargs === 'object' && kwargs !== null, ['kwargs', kwargs], 'named inputs');
    if (chunk.hasRun) throw repeated(this.at(microbatch), 'the forward');
    const positional =
      this.sources.length === 0 ? args : assemble(this.inputs, (source) => this.arrivedFrom(chunk, microbatch, source));
    if (this.inputArgs !== null) checkDeclared(this.stageIndex, 'inputs', this.inputArgs, positional);
    const named = this.withIndices(this.pickKwargs(kwargs), microbatch);
    return named === undefined ? positional : [...positional, named];
  }

  /** Ends a forward that was computed elsewhere. */
  endForward(microbatch: number): void {
    this.chunkOf(microbatch).hasRun = true;
  }

  /** Remembers what was sent to another stage, for the gradients that will come back. */
  setOutgoing(microbatch: number, destination: number, tensors: readonly Tensor[]): void {
    const chunk = this.chunkOf(microbatch);
    if (!(destination > this.stageIndex && destination < this.numStages))
      throw new PipelineError(
        'BAD_WIRING',
        `stage ${this.stageIndex} sends nothing to stage ${show(destination)}; outputs go to later ones of ${this.numStages} stages`,
        this.at(microbatch),
      );
    if (!chunk.hasRun) throw outOfOrder(this.at(microbatch), 'sending outputs', 'its forward');
    if (chunk.to(destination) !== undefined)
      throw repeated(this.at(microbatch), 'the output', ` for stage ${destination}`);
    chunk.outgoing.push({ destination, tensors, isAnswered: false });
  }

  /** Frees the values of what was sent to another stage; to be called when they are sent. */
  releaseOutgoing(microbatch: number, destination: number): void {
    this.chunks.get(microbatch)?.releaseSent(destination);
  }

  /** Remembers the loss of a microbatch, on the last stage. */
  setLoss(microbatch: number, loss: Tensor): void {
    const chunk = this.chunkOf(microbatch);
    if (chunk.loss !== null) throw repeated(this.at(microbatch), 'the loss');
    chunk.loss = loss;
  }

  // --- backward ------------------------------------------------------------------------------------------------------

  /** What was sent to a stage for a microbatch and will get gradients back. */
  sentTo(microbatch: number, destination: number): readonly GradientTarget[] {
    return this.chunks.get(microbatch)?.sentTo(destination) ?? [];
  }

  /** Takes the gradients of what was sent to another stage; null where there is none. */
  setOutputGrads(microbatch: number, destination: number, grads: readonly (Tensor | null)[]): void {
    const chunk = this.chunkOf(microbatch);
    const sent = chunk.sentTo(destination);
    checkArgument('setOutputGrads', Array.isArray(grads), ['the gradients', grads], 'an array');
    if (grads.length !== sent.length)
      throw new PipelineError(
        'GRADIENT_MISMATCH',
        `stage ${this.stageIndex}, microbatch ${microbatch}: stage ${destination} sent back ${grads.length} gradients for ${sent.length} outputs`,
        this.at(microbatch),
      );
    const to = chunk.to(destination);
    if (to !== undefined) {
      if (to.isAnswered) throw repeated(this.at(microbatch), 'the gradients', ` from stage ${destination}`);
      to.isAnswered = true;
    }
    for (let i = 0; i < sent.length; i++) {
      const grad = grads[i] as Tensor | null;
      if (grad === null) continue;
      chunk.roots.push(sent[i]!);
      chunk.rootGrads.push(grad);
    }
  }

  /** Begins the full backward of a microbatch on a thread of its own; `backwardOneChunk` then waits for it. */
  startBackward(microbatch: number, options: StartOptions = {}): void {
    checkOptions('startBackward', options, ['lossGrad', 'threads']);
    const { lossGrad, threads } = options;
    const chunk = this.beforeBackward(microbatch);
    if (chunk.started) throw repeated(this.at(microbatch), 'the backward');
    this.addLoss(microbatch, chunk, lossGrad);
    chunk.started = true;
    if (chunk.roots.length === 0) return;
    keep(chunk.rootGrads);
    try {
      chunk.run = startBackward(chunk.roots, { gradTensors: chunk.rootGrads, threads });
    } catch (cause) {
      throw this.backwardFailed(microbatch, chunk, cause);
    }
  }

  /** The backward of a microbatch, in full or only its input half. */
  backwardOneChunk(microbatch: number, options: StageBackwardOptions = {}): void {
    checkOptions('backwardOneChunk', options, ['full', 'lossGrad', 'inputsReady']);
    const chunk = this.beforeBackward(microbatch);
    if (!chunk.started) this.addLoss(microbatch, chunk, options.lossGrad);
    const full = options.full !== false;
    const inputsReady = options.inputsReady === undefined ? null : new Once(options.inputsReady);
    try {
      computeBackward(chunk, { full, inputsReady, dwBuilder: this.dwBuilder });
    } catch (cause) {
      throw inputsReady?.hasFailed === true ? inputsReady.error : this.backwardFailed(microbatch, chunk, cause);
    }
    chunk.dropActivations();
    if (full) this.retire(microbatch, chunk);
  }

  /** The weight half of a split backward. */
  backwardWeightOneChunk(microbatch: number): void {
    const chunk = this.chunks.get(microbatch);
    const weights = chunk?.weights ?? null;
    if (chunk === undefined || weights === null)
      throw outOfOrder(this.at(microbatch), 'weight backward', 'the input half of its backward');
    chunk.weights = null;
    try {
      if (typeof weights === 'function') weights();
      else weights.run();
    } catch (cause) {
      throw computationFailed(this.at(microbatch), 'weight backward', cause);
    }
    this.retire(microbatch, chunk);
  }

  /** Checks a step's inputs of this stage for a microbatch, before anything runs. */
  checkGiven(args: readonly unknown[] | undefined, kwargs: Record<string, unknown> | undefined): void {
    this.pickKwargs(kwargs ?? {});
    if (this.sources.length === 0 && this.inputArgs !== null)
      checkDeclared(this.stageIndex, 'inputs', this.inputArgs, args ?? []);
  }

  /** Whether a source waits for gradients of a microbatch that it has sent. */
  owesGrads(microbatch: number, source: number): boolean {
    return (this.chunks.get(microbatch)?.from(source)?.leaves.length ?? 0) > 0;
  }

  /** What the backward of a microbatch begins with, its gradients, and the tensors whose gradients other stages wait for. */
  backwardStart(microbatch: number, lossGrad?: Tensor): BackwardStart {
    const chunk = this.beforeBackward(microbatch);
    if (!chunk.started) chunk.addLoss(lossGrad);
    chunk.started = true;
    return { outputs: chunk.roots, outputGrads: chunk.rootGrads, inputs: chunk.leaves() };
  }

  /**
   * Ends a backward that was computed elsewhere: takes the gradients of the inputs, in the order of `backwardStart`, and, where
   * it was only the input half, the function that computes the weight half.
   */
  endBackward(microbatch: number, inputGrads: readonly (Tensor | null)[], weights?: () => void): void {
    const chunk = this.beforeBackward(microbatch);
    const leaves = chunk.leaves();
    if (!Array.isArray(inputGrads) || inputGrads.length !== leaves.length)
      throw new PipelineError(
        'GRADIENT_MISMATCH',
        `stage ${this.stageIndex}, microbatch ${microbatch}: ${Array.isArray(inputGrads) ? inputGrads.length : show(inputGrads)} gradients for ${leaves.length} inputs; give an array with one for each, null where there is none`,
        this.at(microbatch),
      );
    for (const [i, grad] of inputGrads.entries()) checkInputGrad(this.at(microbatch), leaves[i]!, grad);
    let next = 0;
    for (const item of chunk.arrived)
      item.grads = keep(
        inputGrads.slice(next, (next += item.leaves.length)).map((grad: Tensor | null) => grad?.alias() ?? null),
      );
    chunk.weights = weights ?? null;
    chunk.dropActivations();
    this.retire(microbatch, chunk);
  }

  /** Drops the weight half of a microbatch, which was computed elsewhere. */
  skipWeights(microbatch: number): void {
    const chunk = this.chunks.get(microbatch);
    if (chunk === undefined) return;
    if (chunk.weights !== null && typeof chunk.weights !== 'function') chunk.weights.drop();
    chunk.weights = null;
    this.retire(microbatch, chunk);
  }

  /** Takes out the gradients that a source waits for, in the order of what it sent. */
  takeInputGrads(microbatch: number, source: number): readonly (Tensor | null)[] {
    const chunk = this.chunks.get(microbatch);
    const item = chunk?.from(source);
    const grads = item?.grads ?? null;
    if (chunk === undefined || item === undefined || grads === null)
      throw outOfOrder(this.at(microbatch), 'sending gradients', 'its backward');
    item.grads = null;
    this.retire(microbatch, chunk);
    return grads;
  }

  /** Frees what arrived for a microbatch and needs no gradient; to be called after the forward. */
  releaseInputs(microbatch: number): void {
    for (const { values, leaves } of this.chunks.get(microbatch)?.arrived ?? [])
      if (values.length > leaves.length || !(values[0] instanceof Tensor))
        for (const tensor of tensorsIn(values)) if (!leaves.includes(tensor)) tensor.dispose();
  }

  // --- state ---------------------------------------------------------------------------------------------------------

  /** Forgets everything held for a microbatch whose forward needs no backward. */
  forget(microbatch: number): void {
    const chunk = this.chunks.get(microbatch);
    if (chunk === undefined) return;
    chunk.dropActivations();
    chunk.runs?.dispose();
    this.chunks.delete(microbatch);
  }

  /** Forgets everything: what a failed step has left. */
  clearRuntimeStates(): void {
    for (const chunk of this.chunks.values()) chunk.drop();
    this.chunks.clear();
  }

  /** Number of microbatches of which something is held. */
  get inFlight(): number {
    return this.chunks.size;
  }

  private chunkOf(microbatch: number): Chunk {
    if (!Number.isInteger(microbatch) || microbatch < 0) checkCount('PipelineStage', 'the microbatch', microbatch, 0);
    let chunk = this.chunks.get(microbatch);
    if (chunk === undefined) this.chunks.set(microbatch, (chunk = new Chunk()));
    return chunk;
  }

  private arrivedFrom(chunk: Chunk, microbatch: number, source: number): readonly unknown[] {
    const arrived = chunk.from(source);
    if (arrived === undefined) throw outOfOrder(this.at(microbatch), 'forward', `its input from stage ${source}`);
    return arrived.values;
  }

  private pickKwargs(given: Record<string, unknown>): Record<string, unknown> | undefined {
    if (this.kwargs === undefined) return Object.keys(given).length === 0 ? undefined : given;
    for (const name of this.kwargs) {
      if (name in given) continue;
      throw new PipelineError(
        'MISSING_INPUT',
        `stage ${this.stageIndex} takes the named input '${name}'; pass it to step on this rank: { kwargs: { ${name}: … } }`,
        { stage: this.stageIndex },
      );
    }
    if (this.kwargs.length === 0) return undefined;
    return Object.fromEntries(this.kwargs.map((name) => [name, given[name]]));
  }

  /** What is held for a microbatch whose forward has run and whose backward has not. */
  private beforeBackward(microbatch: number): Chunk {
    const chunk = this.chunks.get(microbatch);
    if (chunk?.hasRun !== true) throw outOfOrder(this.at(microbatch), 'backward', 'its forward');
    if (!chunk.active) throw repeated(this.at(microbatch), 'the backward');
    return chunk;
  }

  /** The named inputs with those of `passStageAndMicrobatchIndices`, where that was asked for. */
  private withIndices(named: Record<string, unknown> | undefined, microbatch: number): typeof named {
    if (!this.passStageAndMicrobatchIndices) return named;
    const taken = indexNames.find((name) => named !== undefined && name in named);
    if (taken !== undefined)
      throw new PipelineError(
        'BAD_INPUT',
        `stage ${this.stageIndex} gets '${taken}' from the runtime (passStageAndMicrobatchIndices), and the step gave it too; leave it out of kwargs`,
        this.at(microbatch),
      );
    return { ...named, pipelineStageIndex: this.stageIndex, pipelineMicrobatchIndex: microbatch };
  }

  /** The backward begins with the loss too; refused where the loss needs no gradient although something is learned. */
  private addLoss(microbatch: number, chunk: Chunk, lossGrad: Tensor | undefined): void {
    chunk.addLoss(lossGrad);
    if (chunk.loss === null || chunk.loss.requiresGrad) return;
    const { stageIndex: stage } = this;
    const learned = this.module.parameters().filter((parameter) => parameter.requiresGrad).length;
    const waiting = chunk.leaves().length;
    if (learned === 0 && waiting === 0) return;
    throw new PipelineError(
      'BAD_LOSS',
      `stage ${stage}, backward of microbatch ${microbatch}: the loss needs no gradient, but the stage has parameters to learn (${learned}) and inputs whose gradients earlier stages wait for (${waiting}); compute the loss from the output itself, without detach(), noGrad() and item(), or freeze what shall not learn: requiresGrad_(false)`,
      this.at(microbatch),
    );
  }

  private backwardFailed(microbatch: number, chunk: Chunk, cause: unknown): PipelineError {
    const tensors = `outputs: ${debugInfo(chunk.roots)}; gradients: ${debugInfo(chunk.rootGrads)}; inputs: ${debugInfo(chunk.leaves())}`;
    return computationFailed(this.at(microbatch), 'backward', cause, tensors);
  }

  /** A microbatch at this stage, for messages. */
  private at(microbatch: number): StagePlace {
    return { stage: this.stageIndex, microbatch };
  }

  private retire(microbatch: number, chunk: Chunk): void {
    if (!chunk.isDone) return;
    chunk.runs?.dispose();
    this.chunks.delete(microbatch);
  }
}

function declared(args: Tensor | readonly Tensor[] | undefined): readonly string[] | null {
  if (args === undefined) return null;
  return (args instanceof Tensor ? [args] : args).map(describeTensor);
}
