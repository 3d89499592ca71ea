/** @file Tracing: runs a module once without computing and records what it does as a graph. */
import { nn, type Tensor, TorchError } from '@pipewright/torch';
import { checkArgument, checkChoice, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';
import { type DimRange, type Graph, type GraphNode, inputsOf } from '../graph/graph.ts';
import { type FlatNode, nestRegions, regionInputs } from '../graph/regions.ts';
import { annotatedBorders, bordersOf, joined, type SplitSpec } from '../graph/split-point.ts';
import { unusedName } from '../graph/unused-name.ts';
import { checkGraph } from '../graph/validate.ts';
import { type DynamicShapes, ExampleInputs } from './inputs.ts';
import { type Recording, recordRun, type TraceSubject } from './run.ts';
import { recordSizes } from './size-runs.ts';
import { ModuleState } from './state.ts';
import { compareModes, joinModes, type ModeDifferences } from './train-eval.ts';

/** How a module is traced. */
export interface TraceOptions {
  /** Named arguments: given to `forward` as one object after the others. */
  readonly kwargs?: Readonly<Record<string, unknown>> | undefined;
  /**
   * Which dimensions may differ from the example's, for each tensor among the arguments: `[{ 0: 'batch', 1: 'time' }]`.
   * Default: the first one, called batch, where the model allows it. `false`: all sizes are the example's.
   */
  readonly dynamicShapes?: DynamicShapes | false | undefined;
  /** Modules by name, before or after which a stage ends. */
  readonly splitSpec?: SplitSpec | undefined;
  /** On tensors without memory, on the example itself, or on what works (default). */
  readonly mode?: 'auto' | 'meta' | 'real' | undefined;
}

/** A traced model: what it does, and the tensors it does it with. */
export interface TracedProgram {
  readonly graph: Graph;
  /** Parameters, buffers and constants by the names that the graph uses; tied ones are the same tensor. */
  readonly state: ReadonlyMap<string, Tensor>;
  /** Whether the graph does as the module does in training and in evaluation; else only as in the mode it was traced in. */
  readonly bothModes: boolean;
  /** Whether the module was in training. */
  readonly training: boolean;
  /** Why all sizes are those of the example, where free ones were not asked for and did not work. */
  readonly fixedBecause: string | null;
}

/**
 * Records what a module does with example arguments. Nothing is computed where all operators can do without, and the
 * module is left as it was.
 *
 * @example const { graph } = traceModule(model, [zeros([8, 16])]); console.log(formatGraph(graph))
 */
export function traceModule(
  module: nn.Module,
  exampleArgs: readonly unknown[],
  options: TraceOptions = {},
): TracedProgram {
  checkOptions('traceModule', options, ['kwargs', 'dynamicShapes', 'splitSpec', 'mode']);
  if (!(module instanceof nn.Module))
    throw new PipelineError('BAD_ARGUMENT', `traceModule: the first argument is a module, got ${show(module)}`);
  if (!Array.isArray(exampleArgs))
    throw new PipelineError(
      'BAD_ARGUMENT',
      'traceModule: the second argument is the array of example arguments: traceModule(model, [x])',
    );
  const mode = checkChoice('traceModule', 'mode', options.mode ?? 'auto', ['auto', 'meta', 'real']);
  const { dynamicShapes: asked, kwargs = {}, splitSpec = {} } = options;
  checkArgument('traceModule', isPlainObject(kwargs), ['kwargs', kwargs], 'an object of the named arguments');
  const inputs = new ExampleInputs(module, exampleArgs as unknown[], {
    kwargs,
    dynamicShapes: asked === false ? undefined : asked,
  });
  const annotated = annotatedBorders(module);
  const named = bordersOf(module, splitSpec);
  const subject: Omit<TraceSubject, 'onMeta'> = {
    module,
    state: new ModuleState(module),
    inputs,
    bordersAt: (part, path) => {
      const asked = named.get(path);
      return asked === undefined ? annotated.get(part) : joined(annotated.get(part), asked);
    },
  };
  if (mode !== 'auto') return traceModes({ ...subject, onMeta: mode === 'meta' }, asked);
  try {
    return traceModes({ ...subject, onMeta: true }, asked);
  } catch (error) {
    if (!(error instanceof TorchError)) throw error; // an operator without a meta kernel, or an error of the model's own
    return traceModes({ ...subject, onMeta: false }, asked);
  }
}

/** Traces training and evaluation as one graph where that is possible, else the mode that the module is in. */
function traceModes(subject: TraceSubject, asked: TraceOptions['dynamicShapes']): TracedProgram {
  const { module } = subject;
  const before = module.modules().map((part) => [part, part.training] as const);
  const restore = (): void => {
    for (const [part, training] of before) part.training = training;
  };
  const { sizes } = subject.inputs;
  const own = recordRun(subject, sizes);
  checkBordersMet(subject, own);
  try {
    const isTraining = module.training;
    module.train(!isTraining);
    const other = tryRecording(subject);
    const modes = other === null ? null : isTraining ? compareModes(own, other) : compareModes(other, own);
    if (modes === null || isTraining) restore();
    return traceSizes(subject, modes === null || isTraining ? own : other!, {
      asked,
      modes,
      training: isTraining,
    });
  } finally {
    restore();
  }
}

/** Refuses borders at modules that forward does not call: they would be lost. */
function checkBordersMet({ module, bordersAt }: TraceSubject, { called }: Recording): void {
  const names = module.namedModules({ removeDuplicate: false });
  for (const [path, part] of names) {
    if (bordersAt(part, path) === undefined || called.has(path)) continue;
    const others = names.filter(([name, other]) => other === part && called.has(name)).map(([name]) => name);
    if (others.length > 0 && others.some((name) => bordersAt(part, name) !== undefined)) continue;
    throw new PipelineError(
      'UNKNOWN_MODULE',
      `splitSpec: '${path}' (${part.getName()}) is never called${others.length > 0 ? ` under this name, but as '${others.join("', '")}': name that` : ', so no stage can end there; name a module whose forward runs, such as one inside it'}`,
      { name: path },
    );
  }
}

function tryRecording(subject: TraceSubject): Recording | null {
  try {
    return recordRun(subject, subject.inputs.sizes);
  } catch (error) {
    if (error instanceof TorchError || error instanceof PipelineError) return null;
    throw error;
  }
}

/** How sizes are traced, and what is known by then. */
interface SizeTrace {
  readonly training: boolean;
  readonly asked: TraceOptions['dynamicShapes'];
  readonly modes: ModeDifferences | null;
}

/** Traces free sizes where that was asked for or works, else the example's. */
function traceSizes(subject: TraceSubject, example: Recording, known: SizeTrace): TracedProgram {
  const { asked } = known;
  const isFixed = asked === false || Object.keys(subject.inputs.sizes).length === 0;
  if (isFixed) return finish(subject, example, { ...known, ranges: {}, fixedBecause: null });
  try {
    const { recording, ranges } = recordSizes(subject, example);
    return finish(subject, recording, { ...known, ranges, fixedBecause: null });
  } catch (error) {
    if (asked !== undefined) throw error;
    const fixedBecause = error instanceof Error ? error.message : String(error);
    return finish(subject, example, { ...known, ranges: {}, fixedBecause });
  }
}

/** What is known of a trace besides what it recorded. */
interface Findings {
  readonly training: boolean;
  readonly modes: ModeDifferences | null;
  /** The free sizes that the recording holds for. */
  readonly ranges: Readonly<Record<string, DimRange>>;
  readonly fixedBecause: string | null;
}

function finish(subject: TraceSubject, recorded: Recording, findings: Findings): TracedProgram {
  const { modes, ranges, fixedBecause, training } = findings;
  const { inputs } = subject;
  const recording = modes === null ? recorded : joinModes(recorded, modes);
  const placeholders = recording.inputs.map(({ name, meta }): GraphNode => ({ kind: 'placeholder', name, meta }));
  const attributes = recording.attributes.map(
    ({ name, target, role, persistent, meta }): GraphNode => ({
      kind: 'attribute',
      name,
      target,
      role,
      ...(role === 'buffer' && !persistent ? { persistent: false } : {}),
      meta,
    }),
  );
  const outside = [...placeholders, ...attributes].map((node): FlatNode => ({ node, regions: [] }));
  const body = withoutDead([...recording.nodes, { node: output(recording), regions: [] }]);
  const isFree = recording.inputs.some(({ meta }) => JSON.stringify(meta).match(/"shape":\[[^\]]*"/) !== null);
  const graph: Graph = {
    ...nestRegions({ nodes: [...outside, ...body], graphs: {} }),
    ...(isFree ? { ranges } : {}),
    signature: inputs.signature(recording.inputs.map(({ name }) => name)),
    traced: { fixedBecause },
  };
  checkGraph(graph, 'trace');
  return {
    graph,
    state: new Map(
      recording.attributes
        .toSorted((a, b) => subject.state.placeOf(a.target) - subject.state.placeOf(b.target))
        .map(({ target, tensor }) => [target, tensor]),
    ),
    bothModes: modes !== null,
    training,
    fixedBecause,
  };
}

function output({ output: value, inputs, attributes, nodes }: Recording): GraphNode {
  const taken = new Set([...inputs, ...attributes, ...nodes.map(({ node }) => node)].map(({ name }) => name));
  return { kind: 'output', name: unusedName('output', taken), value };
}

/** Leaves out elements, aliases and sizes that no node uses; everything else may have an effect. */
function withoutDead(nodes: readonly FlatNode[]): FlatNode[] {
  const used = new Set<string>();
  const kept: FlatNode[] = [];
  for (const flat of nodes.toReversed()) {
    const { node } = flat;
    const isFree =
      node.kind === 'element' ||
      (node.kind === 'call' && /^(aten::(alias$|sym_size)|scalar::|pipewright::training$)/.test(node.op));
    if (isFree && !used.has(node.name)) continue;
    for (const name of [...inputsOf(node), ...regionInputs(flat)]) used.add(name);
    kept.push(flat);
  }
  return kept.reverse();
}
