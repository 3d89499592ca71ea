/** @file From a model to a pipe in one call: trace, put borders, split. */
import { nn, Tensor } from '@pipewright/torch';
import { checkArgument, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { isPlainObject } from '../base/tree.ts';
import { GraphModule } from '../execute/graph-module.ts';
import type { Graph } from '../graph/graph.ts';
import type { GraphProgram } from '../graph/graph-program.ts';
import type { SplitSpec } from '../graph/split-point.ts';
import { type BalanceOptions, cutAtModules, cutBalanced, cutBefore, withoutMarks } from '../split/cut.ts';
import { type TraceOptions, traceModule } from '../trace/trace.ts';
import { TrivialLossWrapper } from './loss.ts';
import { Pipe, type PipeOptions } from './pipe.ts';

/** How a model is split. Give at most one of `splitSpec`, `splitPolicy`, `stages` and `plan`; without any, its own marks count. */
export interface PipelineOptions extends PipeOptions, Pick<TraceOptions, 'dynamicShapes' | 'mode'> {
  /** Example arguments of one microbatch; needed for modules, not for graphs. */
  readonly mbArgs?: readonly unknown[] | undefined;
  /** Named example arguments of one microbatch. */
  readonly mbKwargs?: Readonly<Record<string, unknown>> | undefined;
  /** Modules by name, before or after which a stage ends. */
  readonly splitSpec?: SplitSpec | undefined;
  /** Puts marks into the traced graph itself. */
  readonly splitPolicy?: ((graph: Graph) => Graph) | undefined;
  /** Number of stages, of about equal cost. */
  readonly stages?: number | undefined;
  /** A plan, as `planPipeline` makes it: where the model is cut, and which stages compute their forward again. */
  readonly plan?: (Pick<PipeOptions, 'recompute'> & { readonly cutBefore: readonly string[] }) | undefined;
  /** How equal cost is judged, with `stages`. */
  readonly balance?: BalanceOptions | undefined;
}

const optionNames = [
  'mbArgs',
  'mbKwargs',
  'splitSpec',
  'splitPolicy',
  'stages',
  'plan',
  'balance',
  'multiUse',
  'shared',
  'lossSpec',
  'recompute',
  'dynamicShapes',
  'mode',
];

/**
 * Splits a model into stages: a module, which is traced, or a graph with its tensors, as `traceModule` and `loadPt2` give it.
 *
 * @example const pipe = pipeline(model, { mbArgs: [x], splitSpec: { 'layers.4': SplitPoint.BEGINNING } })
 */
export function pipeline(model: nn.Module | GraphProgram, options?: PipelineOptions): Pipe;
/** The same with the example arguments of one microbatch as an array. @example pipeline(model, [x], { stages: 2 }) */
export function pipeline(model: nn.Module, mbArgs: readonly unknown[], options?: Omit<PipelineOptions, 'mbArgs'>): Pipe;
export function pipeline(
  model: nn.Module | GraphProgram,
  given: PipelineOptions | readonly unknown[] = {},
  more: Omit<PipelineOptions, 'mbArgs'> = {},
): Pipe {
  if (given instanceof Tensor)
    throw new PipelineError(
      'BAD_ARGUMENT',
      'pipeline: the second argument is a Tensor; give the example arguments of one microbatch: { mbArgs: [x] }, or [x]',
    );
  const options: PipelineOptions = isList(given) ? { ...more, mbArgs: given } : given;
  checkOptions('pipeline', isList(given) ? more : given, optionNames);
  const { splitSpec, splitPolicy, stages, plan, balance } = options;
  const ways = Object.entries({ splitSpec, splitPolicy, stages, plan }).filter(([, value]) => value !== undefined);
  if (ways.length > 1)
    throw new PipelineError(
      'BAD_OPTION',
      `pipeline: ${ways.map(([name]) => name).join(' and ')} are given; give one of splitSpec, splitPolicy, stages and plan`,
    );
  if (balance !== undefined && stages === undefined)
    throw new PipelineError('BAD_OPTION', 'pipeline: balance is given without stages; give the number of stages');
  const isTraced = model instanceof nn.Module && !(model instanceof GraphModule);
  const program = isTraced ? traceExample(model, options) : checkProgram(model, options);
  const graph = cut(program.graph, isTraced, options);
  const lossSpec = options.lossSpec ?? (model instanceof TrivialLossWrapper ? model.lossSpec : undefined);
  const shared = options.shared ?? (stages === undefined ? 'send' : 'auto');
  const recompute = options.recompute ?? plan?.recompute;
  return Pipe.fromTraced({ ...program, graph }, { multiUse: options.multiUse, shared, lossSpec, recompute });
}

/** The graph with its borders; those that modules were named for are in a traced one already. */
function cut(graph: Graph, isTraced: boolean, options: PipelineOptions): Graph {
  const { splitSpec, splitPolicy, stages, plan } = options;
  if (plan !== undefined) return cutBefore(withoutMarks(graph), plan.cutBefore);
  if (stages !== undefined) return cutBalanced(withoutMarks(graph), stages, options.balance);
  if (splitPolicy !== undefined) {
    if (typeof splitPolicy !== 'function')
      throw new PipelineError(
        'BAD_OPTION',
        `pipeline: splitPolicy is ${show(splitPolicy)}; give a function from graph to graph`,
      );
    return splitPolicy(graph);
  }
  return splitSpec === undefined || isTraced ? graph : cutAtModules(graph, splitSpec);
}

function traceExample(module: nn.Module, options: PipelineOptions): GraphProgram {
  const { mbArgs, mbKwargs, splitSpec, dynamicShapes, mode } = options;
  if (!Array.isArray(mbArgs))
    throw new PipelineError(
      'BAD_OPTION',
      `pipeline: mbArgs is ${show(mbArgs)}; give the example arguments of one microbatch: { mbArgs: [x] }`,
    );
  const isNamed = mbKwargs === undefined || isPlainObject(mbKwargs);
  checkArgument('pipeline', isNamed, ['mbKwargs', mbKwargs], 'an object of the named example arguments');
  return traceModule(module, mbArgs as unknown[], { kwargs: mbKwargs, splitSpec, dynamicShapes, mode });
}

function checkProgram(program: GraphModule | GraphProgram, options: PipelineOptions): GraphProgram {
  if (
    typeof program !== 'object' ||
    program === null ||
    !('graph' in program) ||
    !(program instanceof GraphModule || 'state' in program)
  )
    throw new PipelineError(
      'BAD_ARGUMENT',
      `pipeline: the first argument is a module, or a graph with its state; got ${show(program)}`,
    );
  for (const name of ['mbArgs', 'mbKwargs', 'dynamicShapes', 'mode'] as const)
    if (options[name] !== undefined)
      throw new PipelineError(
        'BAD_OPTION',
        `pipeline: ${name} is for modules that are traced; a graph was given, which has its inputs`,
      );
  return program instanceof GraphModule ? programOf(program) : program;
}

/** The graph and the tensors of a graph module, tied ones under all their names. */
function programOf(module: GraphModule): GraphProgram {
  const all = { removeDuplicate: false };
  return {
    graph: module.graph,
    state: new Map<string, Tensor>([...module.namedParameters(all), ...module.namedBuffers(all)]),
  };
}
