/**
 * @file A graph with its tensors: a module like any other. Parameters and buffers have the qualified names of the original
 * model, in modules of the original hierarchy, so state dicts and safetensors files of that model fit.
 */
import { nn, Tensor } from '@pipewright/torch';
import { recorder } from '@pipewright/torch/internal';
import { checkArgument, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';
import { ArgumentBinder } from '../graph/call-signature.ts';
import type { AttributeNode, CallNode, Graph, GraphArgument, TensorMeta } from '../graph/graph.ts';
import type { GraphState } from '../graph/graph-program.ts';
import { formatGraph } from '../graph/print.ts';
import { checkGraph } from '../graph/validate.ts';
import { type CompileContext, compileGraph } from './compile.ts';
import { InputGuards } from './input-guards.ts';
import { interpretGraph } from './interpret.ts';
import type { Program } from './program.ts';

/** What a graph module may have besides its graph and tensors. */
export interface GraphModuleOptions {
  /** Modules that `module` nodes call, by qualified name. */
  readonly modules?: ReadonlyMap<string, nn.Module> | undefined;
  /** The name that it prints with. Default: GraphModule. */
  readonly name?: string | undefined;
}

/** A part of the original hierarchy: it holds tensors and parts, and computes nothing itself. */
class GraphPart extends nn.Module {
  private readonly ownParameters = new Map<string, nn.Parameter>();
  private readonly ownBuffers = new Map<string, nn.Buffer>();
  private readonly ownChildren = new Map<string, nn.Module>();
  private readonly typeName: string;

  constructor(typeName: string) {
    super();
    this.typeName = typeName;
  }

  override members(): nn.Members {
    return {
      parameters: [...this.ownParameters],
      buffers: [...this.ownBuffers],
      children: [...this.ownChildren],
    };
  }

  /** Puts a tensor or module here. */
  put(name: string, value: nn.Parameter | nn.Buffer | nn.Module): void {
    if (this.ownParameters.has(name) || this.ownBuffers.has(name) || this.ownChildren.has(name))
      throw new PipelineError('GRAPH_STATE', `GraphModule: '${name}' is both a tensor and a module, or is given twice`);
    if (value instanceof nn.Parameter) this.ownParameters.set(name, value);
    else if (value instanceof nn.Buffer) this.ownBuffers.set(name, value);
    else this.ownChildren.set(name, value);
  }

  /** The part of that name, made where there is none. */
  part(name: string, typeName: string): GraphPart {
    const found = this.ownChildren.get(name);
    if (found instanceof GraphPart) return found;
    const made = new GraphPart(typeName);
    this.put(name, made);
    return made;
  }

  override getName(): string {
    return this.typeName;
  }

  forward(..._inputs: unknown[]): unknown {
    throw new PipelineError(
      'GRAPH_PART',
      `${this.typeName} is a part of a GraphModule and cannot be called: the graph runs as a whole`,
    );
  }
}

/** A program with the module and the device that it was compiled for. */
interface Compiled {
  readonly owner: GraphModule;
  readonly device: string;
  readonly program: Program;
}

/**
 * A graph that can be called and trained. Where the graph asks whether it is in training, as traced ones do, `train()` and
 * `eval()` decide it; elsewhere it was decided when the graph was made, and they set the flag `training` only.
 *
 * @example const model = new GraphModule(graph, new Map([['fc.weight', weight]])); model.forward(x)
 */
export class GraphModule extends GraphPart {
  readonly graph: Graph;
  private readonly attributes: readonly (nn.Parameter | nn.Buffer)[];
  private readonly positions: ReadonlyMap<string, number>;
  private readonly modulesByTarget: ReadonlyMap<string, nn.Module>;
  private readonly guards: InputGuards;
  private readonly binder: ArgumentBinder;
  private readonly home: string | undefined;
  /** The program that was compiled last. A copy of this module gets it too, but has tensors of its own and must not use it. */
  private compiled: Compiled | null = null;

  constructor(graph: Graph, state: GraphState, options: GraphModuleOptions = {}) {
    checkOptions('GraphModule', options, ['modules', 'name']);
    super(options.name ?? 'GraphModule');
    checkArgument('GraphModule', state instanceof Map, ['the state', state], 'a Map of tensors by name');
    checkGraph(graph, 'GraphModule');
    this.graph = graph;
    this.modulesByTarget = options.modules ?? new Map();
    const nodes = attributeNodes(graph);
    const types = moduleTypes(graph);
    const owned = takeState(nodes, state);
    for (const [path, tensor] of owned) this.partOf(path, types).put(lastName(path), tensor);
    for (const [path, module] of this.modulesByTarget) this.partOf(path, types).put(lastName(path), module);
    this.positions = new Map([...nodes.keys()].map((target, i) => [target, i]));
    this.attributes = [...nodes.keys()].map((target) => owned.get(target)!);
    this.guards = new InputGuards(graph);
    this.binder = new ArgumentBinder(graph);
    this.home = homeDevice(graph);
  }

  /**
   * Runs the graph. Keyword arguments of the original model are one object after the positional ones. What a model returns that
   * returns more than a tensor is said by the caller.
   *
   * @example model.forward<{ logits: Tensor }>(ids, { attention_mask: mask })
   */
  override forward<Output = Tensor>(...args: unknown[]): Output {
    const inputs = this.binder.bind(args);
    const isLikeLast = this.guards.isLikeLast(inputs);
    if (!isLikeLast) this.guards.check(inputs, (input, meta) => this.acceptsType(input, meta));
    const device = this.deviceFor(inputs);
    if (recorder !== null) return interpretGraph(this.graph, inputs, this.context(device), this.attributes) as Output;
    return this.program(device).run(inputs, this.attributes, isLikeLast) as Output;
  }

  /** Compiles the graph now instead of at the first call: what cannot be run is an error here. */
  compile(): this {
    this.program(this.deviceFor([]));
    return this;
  }

  private program(device: string): Program {
    const { compiled } = this;
    if (compiled !== null && compiled.owner === this && compiled.device === device) return compiled.program;
    const program = compileGraph(this.graph, this.context(device));
    if (compiled?.owner === this) compiled.program.dispose();
    this.compiled = { owner: this, device, program };
    return program;
  }

  /** Frees the memory of all parameters, their gradients, all buffers, and of what was compiled. */
  override dispose(): void {
    super.dispose();
    if (this.compiled?.owner === this) this.compiled.program.dispose();
    this.compiled = null;
  }

  override extraRepr(): string {
    const calls = this.graph.nodes.filter((node) => node.kind === 'call' || node.kind === 'module');
    return `${calls.length} operations`;
  }

  /** The graph as text. */
  printReadable(): string {
    return formatGraph(this.graph);
  }

  /** A module in another type takes inputs of another floating-point type, too. */
  private acceptsType(input: Tensor, meta: TensorMeta): boolean {
    const isFloat = meta.dtype.startsWith('float') || meta.dtype === 'bfloat16';
    return isFloat && input.isFloatingPoint() && this.attributes.some((tensor) => tensor.dtype === input.dtype);
  }

  private context(device: string): CompileContext {
    const { home } = this;
    return {
      attribute: (target) => this.positions.get(target)!,
      module: (target) => {
        const found = this.modulesByTarget.get(target);
        if (found === undefined)
          throw new PipelineError(
            'GRAPH_STATE',
            `GraphModule: no module '${target}' was given; pass it in { modules }`,
          );
        return found;
      },
      training: () => this.training,
      device: (name) => (home !== undefined && (name === home || name === typeOf(home)) ? device : name),
    };
  }

  /** Where operators that name the graph's own device shall run: where the tensors are now. */
  private deviceFor(inputs: readonly unknown[]): string {
    if (this.home === undefined) return '';
    const [first] = this.attributes;
    if (first !== undefined) return first.device;
    return inputs.find((input) => input instanceof Tensor)?.device ?? this.home;
  }

  private partOf(path: string, types: ReadonlyMap<string, string>): GraphPart {
    let part: GraphPart = this;
    const names = path.split('.').slice(0, -1);
    names.forEach((name, i) => {
      part = part.part(name, types.get(names.slice(0, i + 1).join('.')) ?? 'Module');
    });
    return part;
  }
}

function typeOf(device: string): string {
  return device.split(':')[0]!;
}

function lastName(path: string): string {
  return path.slice(path.lastIndexOf('.') + 1);
}

/** The attributes of a graph and its sub-graphs, each once. */
function attributeNodes(graph: Graph): Map<string, AttributeNode> {
  const found = new Map<string, AttributeNode>();
  for (const node of graph.nodes)
    if (node.kind === 'attribute' && !found.has(node.target)) found.set(node.target, node);
  for (const inner of Object.values(graph.graphs ?? {}))
    for (const [target, node] of attributeNodes(inner)) if (!found.has(target)) found.set(target, node);
  return found;
}

/** The class of each module, as the last part of its name. */
function moduleTypes(graph: Graph): Map<string, string> {
  const types = new Map<string, string>();
  for (const node of graph.nodes)
    for (const { path, type } of node.modules ?? []) types.set(path, type.slice(type.lastIndexOf('.') + 1));
  return types;
}

/** The tensors as parameters and buffers, shared ones as one object, in the order given. */
function takeState(
  nodes: ReadonlyMap<string, AttributeNode>,
  state: GraphState,
): Map<string, nn.Parameter | nn.Buffer> {
  const missing = [...nodes.keys()].filter((target) => !state.has(target));
  if (missing.length > 0)
    throw new PipelineError(
      'GRAPH_STATE',
      `GraphModule: the graph reads ${missing.slice(0, 5).join(', ')}${missing.length > 5 ? ` and ${missing.length - 5} more` : ''}, which the state does not have`,
      { missing },
    );
  const taken = new Map<string, nn.Parameter | nn.Buffer>();
  const made = new Map<Tensor, nn.Parameter | nn.Buffer>();
  for (const [path, tensor] of state) {
    if (!(tensor instanceof Tensor))
      throw new PipelineError('GRAPH_STATE', `GraphModule: '${path}' in the state is not a tensor`);
    let own = made.get(tensor);
    if (own === undefined) {
      own = asMember(tensor, nodes.get(path));
      made.set(tensor, own);
    }
    taken.set(path, own);
  }
  return taken;
}

function asMember(tensor: Tensor, node: AttributeNode | undefined): nn.Parameter | nn.Buffer {
  if (tensor instanceof nn.Parameter || tensor instanceof nn.Buffer) return tensor;
  if (node === undefined || node.role === 'parameter')
    return new nn.Parameter(tensor, { requiresGrad: tensor.isFloatingPoint() || tensor.isComplex() });
  return new nn.Buffer(tensor, { persistent: node.persistent !== false });
}

/** The device that a graph's tensors were on when it was made; undefined where that makes no difference, or was several. */
function homeDevice(graph: Graph): string | undefined {
  const found = { attribute: new Set<string>(), placeholder: new Set<string>() };
  let isNamed = false;
  const walk = (part: Graph): void => {
    for (const node of part.nodes) {
      if (node.kind === 'call') isNamed ||= namesDevice(node);
      if ((node.kind !== 'attribute' && node.kind !== 'placeholder') || !hasDevice(node.meta)) continue;
      found[node.kind].add(node.meta.device);
    }
    for (const inner of Object.values(part.graphs ?? {})) walk(inner);
  };
  walk(graph);
  const devices = [...(found.attribute.size > 0 ? found.attribute : found.placeholder)];
  return isNamed && devices.length === 1 ? devices[0] : undefined;
}

function hasDevice(meta: unknown): meta is { readonly device: string } {
  return typeof meta === 'object' && meta !== null && 'device' in meta;
}

function namesDevice(node: CallNode): boolean {
  const names = (value: GraphArgument): boolean => {
    if (typeof value !== 'object' || value === null) return false;
    return isList(value) ? value.some(names) : 'device' in value;
  };
  return (
    node.op === 'higher_order::wrap_with_autocast' || [...node.args, ...Object.values(node.kwargs ?? {})].some(names)
  );
}
