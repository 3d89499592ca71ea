/**
 * @file A whole step as one CUDA graph. A rank's step is a fixed list of actions, so its kernels can be recorded once for
 * each shape of the inputs and then started with one call. The first step of a shape runs as usual, the second is recorded,
 * the later ones are replays: inputs are copied into the recorded ones, losses and gradients read out.
 */
import { cuda, type distributed, noGrad, scope, type Tensor, unscoped } from '@pipewright/torch';
import { describeTensor } from '../base/describe.ts';
import { forgetFirst } from '../base/forget-first.ts';
import { flatten, formatSpec, mapTensors, tensorsIn } from '../base/tree.ts';
import type { Value } from '../base/value.ts';
import type { Recorder } from '../recording/recorder.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import { type AnyRuntimeOptions, isDivisor, type StepOptions } from './options.ts';
import type { LossGradSource, LossGrads, RecordedLossGrads } from './row/loss-grads.ts';
import type { Agreement, StepGraph, Transport } from './transport/transport.ts';

/** What a step gives. */
export interface StepResult {
  readonly outputs: unknown;
  readonly losses: Tensor[];
  /** The losses as numbers, where they were read already. */
  readonly lossValues: readonly number[] | null;
  /** Why there are no outputs, though the step itself is done; null where there are. */
  readonly failure: unknown;
}

/** What a step is given. */
export interface StepInput {
  readonly args: readonly Value[];
  readonly options: StepOptions;
}

/** What a recording needs: a rank that lacks memory finds it out before the others count on it. */
interface Begun {
  readonly graph: StepGraph;
  readonly inputs: readonly Tensor[];
  readonly lossGrads: RecordedLossGrads;
}

/** A recorded step. */
interface Recording extends Begun {
  readonly result: StepResult;
  readonly grads: readonly [parameter: Tensor, grad: Tensor][];
}

/** What of a runtime decides whether its steps can be recorded. */
interface CaptureSubject {
  readonly group: distributed.ProcessGroup | null;
  readonly transport: Transport | null;
  readonly options: AnyRuntimeOptions;
  /** Hooks or custom functions. */
  readonly hasHooks: boolean;
  readonly isParallel: boolean;
  readonly recorder: Recorder | null;
}

/** What speaks against recording, apart from devices. */
export function captureObstacle({
  group,
  transport,
  options,
  hasHooks,
  isParallel,
  recorder,
}: CaptureSubject): string | null {
  if (group !== null && transport?.agree === undefined)
    return `the step exchanges messages with ${group.size - 1} other ranks over ${group.backend}, which cannot be captured; processes with NCCL can, and threads that share a GPU`;
  if (options.messageShapes === 'announced') return 'the shapes of messages are announced in every step';
  if (hasHooks) return 'hooks and custom functions run in every step';
  if (isParallel) return 'gradients are summed over replicas in every step';
  if (recorder !== null) return 'the recorder times every action';
  if (options.scaler !== undefined) return 'a gradient scaler decides anew in every step';
  if (options.random !== undefined) return 'random numbers are drawn by the number of the step';
  return null;
}

/** What speaks against recording a step with this input; null where nothing does. */
export function inputObstacle(input: StepInput): string | null {
  if (input.options.onOutput !== undefined) return 'onOutput looks at outputs in every step';
  if (tensorsOf(input).some((tensor) => tensor.requiresGrad))
    return 'an input wants a gradient, which goes to a copy of it in a recording';
  return null;
}

/** Each recording holds the memory of a whole step: of more than so many, the one that was replayed longest ago is freed. */
const mostRecordings = 16;
/** Steps that were run once, at most, of which a second one would be recorded. */
const mostSeen = 10_000;

/** What steps are recorded of. */
interface CaptureOf {
  readonly stages: readonly PipelineStage[];
  readonly transport: Transport | null;
  /** The gradients that steps which are not recorded begin their backwards with. */
  readonly lossGrads: LossGrads;
}

/** What decides over a step, besides what it is given. */
interface StepContext {
  /** What `stateKey` said. */
  readonly state: string;
  /** What all ranks have agreed on; null where this rank is alone. */
  readonly agreement: Agreement | null;
}

/** The recorded steps of a runtime. */
export class StepCapture {
  /** Why steps are not recorded; null while they are. */
  problem: string | null = null;
  private readonly stages: readonly PipelineStage[];
  private readonly seen = new Set<string>();
  private readonly recordings = new Map<string, Recording>();
  private readonly transport: Transport | null;
  private readonly ofOtherSteps: LossGrads;
  /** Where parameters and buffers lay in the last step, and how often they have moved. */
  private places: readonly bigint[] = [];
  private moves = 0;
  /** What the step that is being recorded begins its backwards with; null where none is. */
  private recorded: RecordedLossGrads | null = null;

  constructor({ stages, transport, lossGrads }: CaptureOf, obstacle: string | null) {
    this.stages = stages;
    this.transport = transport;
    this.ofOtherSteps = lossGrads;
    this.problem = obstacle ?? deviceProblem(this.parameters());
  }

  /** Whether the step under way is being recorded. */
  get isRecording(): boolean {
    return this.recorded !== null;
  }

  /** What the backwards of the step under way begin with. */
  get lossGrads(): LossGradSource {
    return this.recorded ?? this.ofOtherSteps;
  }

  /**
   * What a recording depends on besides what its step is given: which modules are in training, which parameters are learned, and
   * where parameters and buffers lie, because a graph goes on with the memory that it was recorded with.
   */
  stateKey(): string {
    const flags: string[] = [];
    const places: bigint[] = [];
    for (const { module } of this.stages) {
      for (const each of module.modules()) flags.push(each.training ? 't' : 'e');
      for (const each of module.parameters()) {
        flags.push(each.requiresGrad ? '1' : '0');
        places.push(each.dataPtr());
      }
      for (const each of module.buffers()) places.push(each.dataPtr());
    }
    if (places.length !== this.places.length || places.some((place, i) => place !== this.places[i])) this.moves++;
    this.places = places;
    return `${flags.join('')} ${this.moves}`;
  }

  /**
   * Runs a step: eagerly, recording it, or as a replay. With other ranks all do the same: they have compared what they were
   * given, and a recording that fails on one of them is given up by all.
   */
  run(input: StepInput, eagerly: (input: StepInput) => StepResult, { state, agreement }: StepContext): StepResult {
    if (agreement !== null && agreement.captureProblem !== null) this.problem ??= agreement.captureProblem;
    if (this.problem !== null) this.dispose(); // no step is a replay from now on
    // A wrong divisor is refused there. Where there are other ranks, they have agreed on what speaks against this input.
    if (this.problem !== null || !isDivisor(input.options.divisor) || inputObstacle(input) !== null)
      return eagerly(input);
    const key = `${agreement?.key ?? ''} ${inputKey(input)} ${state}`;
    const known = this.recordings.get(key);
    if (known !== undefined) {
      this.recordings.delete(key);
      this.recordings.set(key, known); // the last one to be freed
      return this.replay(known, input);
    }
    const isKnown = agreement === null || agreement.isKnown;
    if (!this.seen.has(key) || !isKnown) {
      this.seen.add(key); // libraries set themselves up in it
      forgetFirst(this.seen, mostSeen);
      return eagerly(input);
    }
    const begun = this.together(() => this.begin(input));
    const made = begun === null ? null : this.together(() => this.record(begun, input, eagerly));
    if (made === null) return eagerly(input);
    this.recordings.set(key, made);
    // All ranks have recorded and replayed the same steps: they free the same ones.
    for (const freed of forgetFirst(this.recordings, mostRecordings)) free(freed);
    return this.replay(made, input);
  }

  /** What `body` makes, on all ranks; null where it fails on one of them, and steps are not recorded from then on. */
  private together<T extends Begun>(body: () => T): T | null {
    let made: T | null = null;
    let failure: string | null = null;
    try {
      made = body();
    } catch (error) {
      failure = error instanceof Error ? error.message : String(error);
      this.transport?.forget?.();
    }
    this.problem = this.transport?.compare === undefined ? failure : this.transport.compare(failure);
    if (this.problem === null) return made;
    if (made !== null) free(made);
    this.dispose();
    return null;
  }

  private parameters(): Tensor[] {
    return [...new Set<Tensor>(this.stages.flatMap((stage) => stage.module.parameters()))];
  }

  /** Frees all recordings. */
  dispose(): void {
    for (const recording of this.recordings.values()) free(recording);
    this.recordings.clear();
    this.seen.clear();
  }

  private begin(input: StepInput): Begun {
    const graph = this.transport?.makeGraph?.() ?? new cuda.CudaGraph();
    try {
      const inputs = unscoped(() => scope(() => noGrad(() => tensorsOf(input).map((tensor) => tensor.clone()))));
      return { graph, inputs, lossGrads: this.ofOtherSteps.forRecording() };
    } catch (error) {
      graph.reset();
      throw error;
    }
  }

  private record(begun: Begun, input: StepInput, eagerly: (input: StepInput) => StepResult): Recording {
    const { graph, inputs, lossGrads } = begun;
    this.recorded = lossGrads;
    const made: { result?: StepResult } = {};
    return unscoped(() => {
      const parameters = this.parameters();
      const before = parameters.map((parameter) => parameter.grad);
      try {
        for (const parameter of parameters) parameter.grad = null;
        let next = 0;
        const fixed = replaceTensors(input, () => inputs[next++]!);
        const result = graph.capture(() => (made.result = eagerly(fixed)), { warmup: 0 });
        const grads = parameters.flatMap((parameter): [Tensor, Tensor][] => {
          const { grad } = parameter;
          return grad === null ? [] : [[parameter, grad]];
        });
        return { ...begun, result, grads };
      } catch (error) {
        free({ ...begun, ...made });
        throw error;
      } finally {
        this.recorded = null;
        parameters.forEach((parameter, i) => {
          const grad = before[i] ?? null;
          parameter.grad = grad;
          grad?.dispose();
        });
      }
    });
  }

  private replay({ graph, inputs, result, grads, lossGrads }: Recording, input: StepInput): StepResult {
    return noGrad(() => {
      tensorsOf(input).forEach((tensor, i) => inputs[i]!.copy_(tensor, { nonBlocking: true }));
      // A gradient that is there from an earlier step may be the very memory that the replay writes.
      const earlier = grads.map(([parameter, grad]) => {
        const there = parameter.grad;
        return there !== null && there.isSame(grad) ? there.clone() : there;
      });
      lossGrads.fill(input.options.divisor);
      graph.replay();
      this.transport?.replayed?.();
      grads.forEach(([parameter, grad], i) => {
        const old = earlier[i] ?? null;
        parameter.grad = old === null ? grad : old.add(grad);
        old?.dispose();
      });
      return {
        outputs: mapTensors(result.outputs, (tensor) => tensor.clone()),
        losses: result.losses.map((loss) => loss.clone()),
        lossValues: null,
        failure: result.failure,
      };
    });
  }
}

/** Why a rank's steps cannot be recorded, as far as its devices tell. */
function deviceProblem(parameters: readonly Tensor[]): string | null {
  const elsewhere = parameters.find((parameter) => !parameter.isCuda);
  if (elsewhere !== undefined) return `a parameter is on ${elsewhere.device}; only work on a GPU can be recorded`;
  return cuda.isAvailable() ? null : 'there is no CUDA here';
}

const inputNames = ['kwargs', 'target', 'argMbs', 'kwargMbs', 'targetMbs', 'lossKwargs'] as const;

/** What a step computes with, as one tree. */
function valuesOf({ args, options }: StepInput): Record<string, unknown> {
  const named = inputNames.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]);
  return { args, ...Object.fromEntries(named) };
}

/** The tensors of an input, in order. */
function tensorsOf(input: StepInput): Tensor[] {
  return tensorsIn(valuesOf(input));
}

function replaceTensors(input: StepInput, change: () => Tensor): StepInput {
  const { args, ...named } = mapTensors(valuesOf(input), change) as { args: Value[] } & StepOptions;
  return { args, options: { ...input.options, ...named } };
}

function free({ graph, inputs, lossGrads, result, grads = [] }: Begun & Partial<Recording>): void {
  graph.reset();
  lossGrads.dispose();
  for (const tensor of [...inputs, ...(result?.losses ?? []), ...tensorsIn(result?.outputs)]) tensor.dispose();
  for (const [, grad] of grads) grad.dispose();
}

/** All that a step is given and that decides how it goes, in words: not the divisor itself, which may be another one in every step. */
export function inputKey(input: StepInput): string {
  const { options } = input;
  const { leaves, spec } = flatten(valuesOf(input));
  const texts = leaves.map((leaf) =>
    typeof leaf === 'object' && leaf !== null && 'handle' in leaf ? describeTensor(leaf as Tensor) : String(leaf),
  );
  return [formatSpec(spec), ...texts, options.returnOutputs !== false, options.divisor !== undefined].join(' ');
}
