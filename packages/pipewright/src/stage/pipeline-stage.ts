/** @file A stage: one piece of the model on one rank, and what it holds for the microbatches under way. */
import {
  backward,
  backwardInputsFirst,
  checkpoint as checkpointed,
  type Device,
  type distributed,
  inputBackward,
  keep,
  type nn,
  startBackward,
  Tensor,
} from '@pipewright/torch';
import { checkOptions } from '../base/checks.ts';
import { debugInfo, describeTensor } from '../base/describe.ts';
import { PipelineError } from '../base/errors.ts';
import { tensorsIn } from '../base/tree.ts';
import { Chunk, disposeAll } from './chunk.ts';
import { assemble, checkInputs, defaultInputs, type StageDescription, type StageInput, sourcesOf } from './wiring.ts';

/** How a stage is connected and run. */
export interface PipelineStageOptions {
  /** Where the module lives; parameters and buffers are moved there. Default: where they are. */
  readonly device?: Device | undefined;
  /** The ranks of the pipeline. Default: the default group. */
  readonly group?: distributed.ProcessGroup | undefined;
  /** Where the positional inputs come from. Default: all that the stage before returns. */
  readonly inputs?: readonly StageInput[] | undefined;
  /** Which of the step's named inputs the module takes, as an object after the positional ones. Default: all given here. */
  readonly kwargs?: readonly string[] | undefined;
  /** Tensors (meta ones will do) like the inputs of one microbatch: whatever differs in type or shape is an error. */
  readonly inputArgs?: Tensor | readonly Tensor[] | undefined;
  /** Tensors like the outputs of one microbatch. */
  readonly outputArgs?: Tensor | readonly Tensor[] | undefined;
  /** Parameters that other stages hold as well: tie name by parameter name. Their gradients are summed over all holders. */
  readonly ties?: Readonly<Record<string, string>> | undefined;
  /** Keeps only the inputs of a microbatch and computes the rest again in its backward. */
  readonly checkpoint?: boolean | undefined;
  /** Called after each backward; what it returns computes the weight gradients that the module has put off. */
  readonly dwBuilder?: (() => () => void) | undefined;
}

const optionNames = [
  'device',
  'group',
  'inputs',
  'kwargs',
  'inputArgs',
  'outputArgs',
  'ties',
  'checkpoint',
  'dwBuilder',
];

/** What `backwardOneChunk` takes. */
export interface StageBackwardOptions {
  /** Both halves at once (default), or only what the stages before wait for. */
  readonly full?: boolean | undefined;
  /** The gradient of the loss: its share in the whole. Default 1. */
  readonly lossGrad?: Tensor | undefined;
  /** Called once, as soon as the gradients of the inputs are there; where that can be, before those of the weights are computed. */
  readonly inputsReady?: (() => void) | undefined;
}

/** What `startBackward` takes. */
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
  readonly checkpoint: boolean;
  readonly dwBuilder: (() => () => void) | undefined;
  /** The stages that inputs come from, ascending. */
  readonly sources: readonly number[];
  private readonly inputArgs: readonly string[] | null;
  private readonly outputArgs: readonly string[] | null;
  private readonly chunks = new Map<number, Chunk>();

  constructor(module: nn.Module, stageIndex: number, numStages: number, options: PipelineStageOptions = {}) {
    checkOptions('PipelineStage', options, optionNames);
    if (typeof (module as { forward?: unknown } | null)?.forward !== 'function')
      throw new PipelineError('BAD_STAGE', 'PipelineStage: the first argument must be a module with a forward method');
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
    this.module = module;
    this.stageIndex = stageIndex;
    this.numStages = numStages;
    this.group = options.group;
    this.inputs = options.inputs ?? defaultInputs(stageIndex);
    checkInputs(stageIndex, this.inputs);
    this.sources = sourcesOf(this.inputs);
    this.kwargs = options.kwargs;
    this.checkpoint = options.checkpoint === true;
    this.dwBuilder = options.dwBuilder;
    this.inputArgs = declared(options.inputArgs);
    this.outputArgs = declared(options.outputArgs);
    this.ties = options.ties ?? {};
    for (const name of Object.keys(this.ties)) module.getParameter(name);
    if (options.device !== undefined && !module.parameters().some((parameter) => parameter.isMeta))
      module.to(options.device);
  }

  /** Whether this is stage 0. */
  get isFirst(): boolean {
    return this.stageIndex === 0;
  }

  /** Whether no stage comes after it. */
  get isLast(): boolean {
    return this.stageIndex === this.numStages - 1;
  }

  /** What the other ranks must know. */
  describe(): StageDescription {
    const { stageIndex: stage, inputs, ties, inputArgs, outputArgs } = this;
    return { stage, inputs: inputs.map((input) => ({ ...input })), ties, inputArgs, outputArgs };
  }

  // --- forward -------------------------------------------------------------------------------------------------------

  /** Takes what another stage sent for a microbatch; `leaves` are the tensors that need gradients. */
  setInput(microbatch: number, source: number, values: readonly unknown[], leaves: readonly Tensor[]): void {
    this.chunkOf(microbatch).arrived.push({ source, values, leaves, grads: null });
  }

  /**
   * Runs the module on one microbatch: on `args` where the stage has no sources, else on what arrived for it.
   * Returns what the module returned.
   */
  forwardOneChunk(microbatch: number, args: readonly unknown[] = [], kwargs: Record<string, unknown> = {}): unknown {
    const chunk = this.chunkOf(microbatch);
    const positional =
      this.sources.length === 0 ? args : assemble(this.inputs, (source) => this.arrivedFrom(chunk, microbatch, source));
    if (this.inputArgs !== null) this.compare('inputs', this.inputArgs, positional);
    const named = this.pickKwargs(kwargs);
    const inputs = named === undefined ? positional : [...positional, named];
    let output: unknown;
    try {
      const forward = this.module.forward as (...inputs: unknown[]) => unknown;
      output = this.checkpoint
        ? checkpointed((...given: unknown[]) => forward.apply(this.module, given), inputs)
        : forward.apply(this.module, inputs as unknown[]);
    } catch (cause) {
      throw new PipelineError(
        'STAGE_FAILED',
        `stage ${this.stageIndex}, forward of microbatch ${microbatch}: ${messageOf(cause)} (inputs: ${debugInfo(inputs)})`,
        { stage: this.stageIndex, microbatch },
        { cause },
      );
    }
    if (this.outputArgs !== null) this.compare('outputs', this.outputArgs, [output]);
    return output;
  }

  /** Remembers what was sent to another stage, for the gradients that will come back. */
  setOutgoing(microbatch: number, destination: number, tensors: readonly Tensor[]): void {
    this.chunkOf(microbatch).outgoing.push({ destination, tensors });
  }

  /** Remembers the loss of a microbatch, on the last stage. */
  setLoss(microbatch: number, loss: Tensor): void {
    this.chunkOf(microbatch).loss = loss;
  }

  // --- backward ------------------------------------------------------------------------------------------------------

  /** The tensors that were sent to a stage for a microbatch and that gradients will come back for. */
  sentTo(microbatch: number, destination: number): readonly Tensor[] {
    return this.chunks.get(microbatch)?.sentTo(destination) ?? [];
  }

  /** Takes the gradients of what was sent to another stage; null where there is none. */
  setOutputGrads(microbatch: number, destination: number, grads: readonly (Tensor | null)[]): void {
    const chunk = this.chunkOf(microbatch);
    const sent = chunk.sentTo(destination);
    if (grads.length !== sent.length)
      throw new PipelineError(
        'GRADIENT_MISMATCH',
        `stage ${this.stageIndex}, microbatch ${microbatch}: stage ${destination} sent back ${grads.length} gradients for ${sent.length} outputs`,
        { stage: this.stageIndex, microbatch },
      );
    for (let i = 0; i < sent.length; i++) {
      const grad = grads[i] as Tensor | null;
      if (grad === null) continue;
      chunk.roots.push(sent[i] as Tensor);
      chunk.rootGrads.push(grad);
    }
  }

  /** Begins the full backward of a microbatch on a thread of its own; `backwardOneChunk` then waits for it. */
  startBackward(microbatch: number, { lossGrad, threads }: StartOptions = {}): void {
    const chunk = this.chunks.get(microbatch);
    if (chunk === undefined) throw this.outOfOrder('backward', microbatch, 'its forward');
    addLoss(chunk, lossGrad);
    chunk.started = true;
    if (chunk.roots.length === 0) return;
    keep(chunk.rootGrads);
    try {
      chunk.run = startBackward(chunk.roots, { gradTensors: chunk.rootGrads, threads });
    } catch (cause) {
      throw this.backwardFailed(microbatch, chunk, cause);
    }
  }

  /** The backward of a microbatch, in full or only what the stages before wait for. */
  backwardOneChunk(microbatch: number, options: StageBackwardOptions = {}): void {
    const chunk = this.chunks.get(microbatch);
    if (chunk === undefined) throw this.outOfOrder('backward', microbatch, 'its forward');
    if (!chunk.started) addLoss(chunk, options.lossGrad);
    const { roots, rootGrads } = chunk;
    const full = options.full !== false;
    const leaves = chunk.leaves();
    const inputsReady = options.inputsReady === undefined ? null : new Once(options.inputsReady);
    for (const item of chunk.arrived) item.grads = item.leaves.map(() => null);
    try {
      if (roots.length === 0) {
        if (!full) chunk.weights = nothing;
      } else if (
        full &&
        inputsReady !== null &&
        leaves.length > 0 &&
        chunk.run === null &&
        this.dwBuilder === undefined
      ) {
        const ready = (): void => {
          takeGrads(chunk);
          inputsReady.call();
        };
        backwardInputsFirst(roots, { gradTensors: rootGrads, inputs: leaves, ready });
      } else if (full || this.dwBuilder !== undefined) {
        if (chunk.run === null) backward(roots, { gradTensors: rootGrads });
        else chunk.run.finish();
        takeGrads(chunk);
        const runner = this.dwBuilder?.() ?? nothing;
        if (full) {
          inputsReady?.call();
          runner();
        } else chunk.weights = runner;
      } else if (leaves.length === 0) {
        // Nobody waits for anything: the weight half will be the whole backward.
        keep(rootGrads);
        chunk.weights = () => {
          backward(roots, { gradTensors: rootGrads });
          disposeAll(roots);
          disposeAll(rootGrads);
        };
        chunk.outgoing = [];
        chunk.roots = [];
        chunk.rootGrads = [];
        chunk.loss = null;
      } else {
        const { inputGrads, weights } = inputBackward({ outputs: roots, gradOutputs: rootGrads, inputs: leaves });
        chunk.weights = weights;
        keep(inputGrads);
        let next = 0;
        for (const item of chunk.arrived) item.grads = inputGrads.slice(next, (next += item.leaves.length));
      }
      inputsReady?.call();
    } catch (cause) {
      throw inputsReady?.hasFailed === true ? inputsReady.error : this.backwardFailed(microbatch, chunk, cause);
    }
    chunk.dropActivations();
    if (full) this.retire(microbatch, chunk);
  }

  /** The other half of a split backward. */
  backwardWeightOneChunk(microbatch: number): void {
    const chunk = this.chunks.get(microbatch);
    const weights = chunk?.weights ?? null;
    if (chunk === undefined || weights === null)
      throw this.outOfOrder('weight backward', microbatch, 'the input half of its backward');
    chunk.weights = null;
    try {
      if (typeof weights === 'function') weights();
      else weights.run();
    } catch (cause) {
      throw new PipelineError(
        'STAGE_FAILED',
        `stage ${this.stageIndex}, weight backward of microbatch ${microbatch}: ${messageOf(cause)}`,
        { stage: this.stageIndex, microbatch },
        { cause },
      );
    }
    this.retire(microbatch, chunk);
  }

  /** Takes out the gradients that a source waits for, in the order of what it sent. */
  takeInputGrads(microbatch: number, source: number): readonly (Tensor | null)[] {
    const chunk = this.chunks.get(microbatch);
    const item = chunk?.from(source);
    const grads = item?.grads ?? null;
    if (chunk === undefined || item === undefined || grads === null)
      throw this.outOfOrder('sending gradients', microbatch, 'its backward');
    item.grads = null;
    this.retire(microbatch, chunk);
    return grads;
  }

  /** Frees what arrived for a microbatch and needs no gradient; to be called when the forward is through. */
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
    let chunk = this.chunks.get(microbatch);
    if (chunk === undefined) this.chunks.set(microbatch, (chunk = new Chunk()));
    return chunk;
  }

  private arrivedFrom(chunk: Chunk, microbatch: number, source: number): readonly unknown[] {
    const arrived = chunk.from(source);
    if (arrived === undefined) throw this.outOfOrder('forward', microbatch, `its input from stage ${source}`);
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

  private retire(microbatch: number, chunk: Chunk): void {
    if (chunk.isDone) this.chunks.delete(microbatch);
  }

  private backwardFailed(microbatch: number, chunk: Chunk, cause: unknown): PipelineError {
    const { stageIndex: stage } = this;
    const what = `outputs: ${debugInfo(chunk.roots)}; gradients: ${debugInfo(chunk.rootGrads)}; inputs: ${debugInfo(chunk.leaves())}`;
    return new PipelineError(
      'STAGE_FAILED',
      `stage ${stage}, backward of microbatch ${microbatch}: ${messageOf(cause)} (${what})`,
      { stage, microbatch },
      { cause },
    );
  }

  private compare(what: 'inputs' | 'outputs', expected: readonly string[], given: unknown): void {
    const tensors = tensorsIn(given).map(describeTensor);
    if (tensors.join() === expected.join()) return;
    const different = expected.findIndex((text, i) => text !== tensors[i]);
    const place = tensors.length === expected.length ? `tensor ${different}` : 'the number of tensors';
    throw new PipelineError(
      'SHAPE_MISMATCH',
      `stage ${this.stageIndex}: ${place} of its ${what} differs from ${what === 'inputs' ? 'inputArgs' : 'outputArgs'}: declared ${expected.join(', ')}; got ${tensors.join(', ')}. Declare what the stage really gets, or leave both out: shapes travel with every message`,
      { stage: this.stageIndex, expected, got: tensors },
    );
  }

  private outOfOrder(what: string, microbatch: number, missing: string): PipelineError {
    return new PipelineError(
      'OUT_OF_ORDER',
      `stage ${this.stageIndex}: ${what} of microbatch ${microbatch} without ${missing}; the schedule must have it before (validate() says where)`,
      { stage: this.stageIndex, microbatch },
    );
  }
}

function nothing(): void {}

/** A callback that is called once; its error is told apart from those of what it is called in. */
class Once {
  hasFailed = false;
  error: unknown;
  private callback: (() => void) | undefined;

  constructor(callback: () => void) {
    this.callback = callback;
  }

  call(): void {
    const { callback } = this;
    this.callback = undefined;
    try {
      callback?.();
    } catch (error) {
      this.hasFailed = true;
      this.error = error;
      throw error;
    }
  }
}

/** Keeps the gradients that a backward has left in what arrived. */
function takeGrads(chunk: Chunk): void {
  for (const item of chunk.arrived) item.grads = keep(item.leaves.map((leaf) => leaf.grad));
}

function addLoss(chunk: Chunk, lossGrad: Tensor | undefined): void {
  if (chunk.loss?.requiresGrad !== true) return;
  chunk.roots.push(chunk.loss);
  chunk.rootGrads.push(lossGrad?.alias() ?? null); // an alias: gradients are freed when used
}

function declared(args: Tensor | readonly Tensor[] | undefined): readonly string[] | null {
  if (args === undefined) return null;
  return (args instanceof Tensor ? [args] : args).map(describeTensor);
}

function messageOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
