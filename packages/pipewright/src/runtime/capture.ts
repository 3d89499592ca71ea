/**
 * @file A whole step as one CUDA graph. A rank's step is a fixed list of actions, so its kernels can be recorded once for
 * each shape of the inputs and then started with one call. The first step of a shape runs as usual, the second is recorded,
 * the later ones are replays: inputs are copied into the recorded ones, losses and gradients read out.
 */
import { cuda, type distributed, noGrad, scope, type Tensor, unscoped } from '@pipewright/torch';
import { describeTensor } from '../base/describe.ts';
import { flatten, formatSpec, mapTensors, tensorsIn } from '../base/tree.ts';
import type { Value } from '../base/value.ts';
import type { Recorder } from '../recording/recorder.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { AnyRuntimeOptions, StepOptions } from './options.ts';
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

/** The recorded steps of a runtime. */
export class StepCapture {
  /** Why steps are not recorded; null while they are. */
  problem: string | null = null;
  private readonly parameters: readonly Tensor[];
  private readonly seen = new Set<string>();
  private readonly recordings = new Map<string, Recording>();

  /** Whether the step under way is being recorded. */
  isRecording = false;
  private readonly transport: Transport | null;

  constructor(stages: readonly PipelineStage[], obstacle: string | null, transport: Transport | null = null) {
    this.transport = transport;
    this.parameters = [...new Set<Tensor>(stages.flatMap((stage) => stage.module.parameters()))];
    this.problem = obstacle ?? deviceProblem(this.parameters);
  }

  /**
   * Runs a step: eagerly, recording it, or as a replay. With other ranks all do the same: they have compared what they were
   * given, and a recording that fails on one of them is given up by all.
   */
  run(input: StepInput, eagerly: (input: StepInput) => StepResult, agreement: Agreement | null = null): StepResult {
    if (agreement !== null && agreement.captureProblem !== null) this.problem ??= agreement.captureProblem;
    if (this.problem !== null) return eagerly(input);
    const key = agreement === null ? inputKey(input) : `${agreement.key} ${inputKey(input)}`;
    const known = this.recordings.get(key);
    if (known !== undefined) return this.replay(known, input);
    const isKnown = agreement === null || agreement.isKnown;
    if (!this.seen.has(key) || !isKnown) {
      this.seen.add(key); // libraries set themselves up in it
      return eagerly(input);
    }
    const begun = this.together(() => this.begin(input));
    const made = begun === null ? null : this.together(() => this.record(begun, input, eagerly));
    if (made === null) return eagerly(input);
    this.recordings.set(key, made);
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
    return null;
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
      return { graph, inputs };
    } catch (error) {
      graph.reset();
      throw error;
    }
  }

  private record({ graph, inputs }: Begun, input: StepInput, eagerly: (input: StepInput) => StepResult): Recording {
    this.isRecording = true;
    const made: { result?: StepResult } = {};
    return unscoped(() => {
      const before = this.parameters.map((parameter) => parameter.grad);
      try {
        for (const parameter of this.parameters) parameter.grad = null;
        let next = 0;
        const fixed = replaceTensors(input, () => inputs[next++]!);
        const result = graph.capture(() => (made.result = eagerly(fixed)), { warmup: 0 });
        const grads = this.parameters.flatMap((parameter): [Tensor, Tensor][] => {
          const { grad } = parameter;
          return grad === null ? [] : [[parameter, grad]];
        });
        return { graph, inputs, result, grads };
      } catch (error) {
        free({ graph, inputs, ...made });
        throw error;
      } finally {
        this.isRecording = false;
        this.parameters.forEach((parameter, i) => {
          const grad = before[i] ?? null;
          parameter.grad = grad;
          grad?.dispose();
        });
      }
    });
  }

  private replay({ graph, inputs, result, grads }: Recording, input: StepInput): StepResult {
    return noGrad(() => {
      tensorsOf(input).forEach((tensor, i) => inputs[i]!.copy_(tensor, { nonBlocking: true }));
      // A gradient that is there from an earlier step may be the very memory that the replay writes.
      const earlier = grads.map(([parameter, grad]) => {
        const there = parameter.grad;
        return there !== null && there.isSame(grad) ? there.clone() : there;
      });
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

function free({ graph, inputs, result, grads = [] }: Begun & Partial<Recording>): void {
  graph.reset();
  for (const tensor of [...inputs, ...(result?.losses ?? []), ...tensorsIn(result?.outputs)]) tensor.dispose();
  for (const [, grad] of grads) grad.dispose();
}

/** All that a recording depends on, in words. */
export function inputKey(input: StepInput): string {
  const { options } = input;
  const { leaves, spec } = flatten(valuesOf(input));
  const texts = leaves.map((leaf) =>
    typeof leaf === 'object' && leaf !== null && 'handle' in leaf ? describeTensor(leaf as Tensor) : String(leaf),
  );
  return [formatSpec(spec), ...texts, options.returnOutputs !== false, options.divisor ?? ''].join(' ');
}
