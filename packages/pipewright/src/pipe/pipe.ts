/** @file A model split into stages: a root graph that calls them, and a module for each. */
import type { StageEdge } from '@pipewright/schedule';
import { type Device, nn, type Tensor } from '@pipewright/torch';
import { checkArgument, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { GraphModule } from '../execute/graph-module.ts';
import type { Graph } from '../graph/graph.ts';
import type { GraphProgram, GraphState } from '../graph/graph-program.ts';
import { formatGraph } from '../graph/print.ts';
import type { SplitGraph, StagePart } from '../split/parts.ts';
import { type SplitGraphOptions, splitGraph } from '../split/split.ts';
import { PipelineStage } from '../stage/pipeline-stage.ts';
import type { PipelineStageOptions } from '../stage/stage-options.ts';
import type { StageInput } from '../stage/wiring.ts';
import { DetachExecutor, PipeExecutor } from './executor.ts';
import { findLossOutput, insertSymbolicBackward, type LossSpec } from './loss.ts';
import { type RoutedStage, routeStages } from './route.ts';
import { type ReplicatedParameter, replicatedParameters, stageState, TensorNames } from './state.ts';

/** How a graph becomes a pipe. */
export interface PipeOptions extends Omit<SplitGraphOptions, 'sameTensor'> {
  /** Where the loss is in what the model returns; the pipe's own backward starts there. */
  readonly lossSpec?: LossSpec | undefined;
  /** Which stages compute their forward again in the backward instead of keeping it. Default: none. */
  readonly recompute?: readonly boolean[] | undefined;
}

/** How one stage is connected. Plain JSON. */
export interface StageWiring {
  readonly inputs: readonly StageInput[];
  /** Tie name of each parameter that other stages hold as well, by parameter name. */
  readonly ties: Readonly<Record<string, string>>;
}

/** What ranks know of a pipe without holding its modules. Plain JSON. */
export interface PipeInfo {
  /** The root graph. */
  readonly graph: Graph;
  readonly numStages: number;
  readonly hasLossAndBackward: boolean;
  readonly wiring: readonly StageWiring[];
  /** Which stages exchange values: what schedules take as `edges`. */
  readonly edges: readonly StageEdge[];
}

/** How a stage is built: where it runs, and the rest of what `PipelineStage` takes. */
export type BuildStageOptions = Omit<PipelineStageOptions, 'inputs' | 'ties' | 'kwargs'>;

/**
 * A model split into stages. It is a module, too: calling it runs all stages here, one after the other.
 *
 * @example const pipe = pipeline(model, { mbArgs: [x], stages: 4 }); const stage = pipe.buildStage(rank, { group })
 */
export class Pipe extends nn.Module {
  readonly split: SplitGraph;
  /** Parameters that several stages hold a copy of. */
  readonly replicatedParams: readonly ReplicatedParameter[];
  readonly hasLossAndBackward: boolean;
  private readonly root: Graph;
  private readonly recompute: readonly boolean[];
  private readonly bothModes: boolean;
  private readonly routed: readonly RoutedStage[];
  private readonly states: readonly ReadonlyMap<string, Tensor>[];
  private readonly stageModules: readonly GraphModule[];
  /** The modules that ranks run: with the same tensors, and the connections between ranks. */
  private readonly rankModules: readonly GraphModule[];

  private constructor(split: SplitGraph, program: GraphProgram, options: Pick<PipeOptions, 'lossSpec' | 'recompute'>) {
    super();
    this.split = split;
    const names = new TensorNames(program.state);
    this.replicatedParams = replicatedParameters(split, names);
    const context = { names, replicated: this.replicatedParams, copies: new Map<string, Tensor>() };
    this.states = split.stages.map((part) => stageState(part, program.state, context));
    this.stageModules = split.stages.map(
      (part, i) => new GraphModule(part.graph, this.states[i] as GraphState, { name: 'Stage' }),
    );
    this.routed = routeStages(split);
    this.rankModules = this.routed.map(
      ({ graph }, i) => new GraphModule(graph, this.states[i] as GraphState, { name: 'Stage' }),
    );
    this.bothModes = program.bothModes !== false;
    if (program.training === false) this.setMode(false);
    const { lossSpec, recompute = [] } = options;
    this.recompute = recompute;
    const loss = lossSpec === undefined ? null : findLossOutput(split.root, lossSpec);
    this.hasLossAndBackward = loss !== null;
    this.root = loss === null ? split.root : insertSymbolicBackward(split.root, loss);
  }

  /** Splits a program at its marks. @example Pipe.fromTraced(traceModule(model, [x])) */
  static fromTraced(program: GraphProgram, options: PipeOptions = {}): Pipe {
    checkOptions('Pipe.fromTraced', options, ['multiUse', 'shared', 'lossSpec', 'recompute']);
    const isProgram = (program as GraphProgram | null)?.state instanceof Map;
    checkArgument('Pipe.fromTraced', isProgram, ['the program', program], 'what traceModule gives');
    const { lossSpec, recompute, ...rest } = options;
    const isRecompute =
      recompute === undefined || (Array.isArray(recompute) && recompute.every((each) => typeof each === 'boolean'));
    checkArgument(
      'Pipe.fromTraced',
      isRecompute,
      ['recompute', recompute],
      'true or false for each stage: [true, false]',
    );
    const names = new TensorNames(program.state);
    return new Pipe(splitGraph(program.graph, { ...rest, sameTensor: names.first }), program, { lossSpec, recompute });
  }

  override members(): nn.Members {
    return {
      parameters: [],
      buffers: [],
      children: this.split.stages.map(({ name }, i) => [name, this.stageModules[i]!]),
    };
  }

  /** Training or evaluation of all stages; refused where the graph can do only the one it was traced in. */
  override train(mode = true): this {
    if (!this.bothModes && mode !== this.training)
      throw new PipelineError(
        'FIXED_MODE',
        `Pipe: what the model computes in training and in evaluation differs by more than flags, so the graph does only ${this.training ? 'training' : 'evaluation'}; make a second pipe with the model in the other mode`,
      );
    return this.setMode(mode);
  }

  private setMode(mode: boolean): this {
    for (const module of this.rankModules) module.train(mode);
    return super.train(mode);
  }

  /** Number of stages. */
  get numStages(): number {
    return this.split.stages.length;
  }

  /** Borders that were ignored, and why sizes are fixed that could have been free, in words. */
  get notes(): readonly string[] {
    const reason = this.split.root.traced?.fixedBecause ?? null;
    return reason === null
      ? this.split.notes
      : [...this.split.notes, `all sizes are those of the example, because other sizes did not work: ${reason}`];
  }

  /**
   * Runs all stages here. A pipe with a loss also runs the backward of every stage, each from what arrived at its borders.
   *
   * @example pipe.forward(x) // pipe.forward<[Tensor, Tensor]>(x) where the model returns two tensors
   */
  override forward<Output = Tensor>(...args: unknown[]): Output {
    const moduleOf = (target: string): GraphModule => this.getSubmodule(target) as GraphModule;
    const Executor = this.hasLossAndBackward ? DetachExecutor : PipeExecutor;
    return new Executor(this.root, moduleOf).run(...args) as Output;
  }

  /**
   * The module of a stage as a rank runs it, with the tensors of this pipe: stage 0 is called as the model is and passes
   * on what later stages want of the model's inputs; the last stage returns what the model returns.
   *
   * @example buildStage(pipe.getStageModule(rank), rank, pipe.info(), { group })
   */
  getStageModule(stage: number): GraphModule {
    this.checkStage('getStageModule', stage);
    return this.rankModules[stage]!;
  }

  /** What other ranks need to know; it holds no tensor and no module. */
  info(): PipeInfo {
    const wiring = this.routed.map(({ inputs }, stage) => ({
      inputs: inputs.map(stageInput),
      ties: this.tiesOf(stage),
    }));
    const edges = wiring.flatMap(({ inputs }, stage) =>
      [...new Set(inputs.map((input) => input.stage))].sort((a, b) => a - b).map((from): StageEdge => [from, stage]),
    );
    return { graph: this.root, numStages: this.numStages, hasLossAndBackward: this.hasLossAndBackward, wiring, edges };
  }

  /**
   * The stage of that number, ready for a runtime: connected to the others, its tied parameters named.
   *
   * @example new PipelineRuntime(pipe.buildStage(rank, { device: 'cuda' }), '1F1B', { microbatches: 8, lossFn })
   */
  buildStage(stage: number, options: BuildStageOptions | Device = {}): PipelineStage {
    this.checkStage('buildStage', stage);
    const given = typeof options === 'string' ? { device: options } : options;
    const isObject = typeof given === 'object' && given !== null;
    const own = isObject && this.recompute[stage] === true ? { checkpoint: true, ...given } : given;
    return buildStage(this.getStageModule(stage), stage, this.info(), own);
  }

  /** The root graph as text. */
  printReadable(): string {
    return formatGraph(this.root);
  }

  override extraRepr(): string {
    return `${this.numStages} stages`;
  }

  private tiesOf(stage: number): Record<string, string> {
    const ties: Record<string, string> = {};
    for (const { name, stages } of this.replicatedParams) {
      const [local] = stages.get(stage) ?? [];
      if (local !== undefined) ties[local] = name;
    }
    return ties;
  }

  private checkStage(where: string, stage: unknown): void {
    if (Number.isInteger(stage) && (stage as number) >= 0 && (stage as number) < this.numStages) return;
    throw new PipelineError(
      'BAD_STAGE',
      `Pipe.${where}: there is no stage ${show(stage)}; this pipe has stages 0 to ${this.numStages - 1}`,
      { stage },
    );
  }
}

/**
 * A stage from its module and what is known of the pipe: for ranks that were sent both.
 *
 * @example buildStage(module, 1, info, { group })
 */
export function buildStage(
  module: nn.Module,
  stage: number,
  info: PipeInfo,
  options: BuildStageOptions | Device = {},
): PipelineStage {
  if (!(module instanceof nn.Module))
    throw new PipelineError(
      'BAD_ARGUMENT',
      `buildStage: the first argument is ${show(module)}; give the module of a stage: pipe.getStageModule(${show(stage)})`,
    );
  if (typeof info !== 'object' || info === null || !Array.isArray(info.wiring))
    throw new PipelineError(
      'BAD_ARGUMENT',
      `buildStage: the third argument is ${show(info)}; give what is known of the pipe: pipe.info()`,
    );
  const isOptions = typeof options === 'string' || (typeof options === 'object' && options !== null);
  checkArgument('buildStage', isOptions, ['the last argument', options], 'a device, or options: { device, group }');
  const wiring = info.wiring[stage];
  if (wiring === undefined)
    throw new PipelineError(
      'BAD_STAGE',
      `buildStage: there is no stage ${show(stage)}; the pipe has ${info.numStages}`,
      { stage },
    );
  const { inputs, ties } = wiring;
  return new PipelineStage(module, stage, info.numStages, {
    ...(typeof options === 'string' ? { device: options } : options),
    ties,
    ...(stage === 0 ? {} : { inputs, kwargs: [] }),
  });
}

function stageInput({ stage, output }: RoutedStage['inputs'][number]): StageInput {
  return output === null ? { stage } : { stage, output };
}

/** The stages of a pipe in words: layers, parameters, inputs and outputs. */
export type { StagePart };
