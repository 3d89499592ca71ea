/**
 * @file A model as data: a list of nodes in the order of execution, with sub-graphs and ranges of dynamic sizes. It is
 * plain JSON, so it prints, compares, and travels to a worker or a file as it is; `GraphBuilder` makes one,
 * `validateGraph` is the rule book, `GraphModule` runs it.
 */
import { checkArgument } from '../base/checks.ts';
import { isList } from '../base/list.ts';

/** A size: a number, or the text of an expression in symbols, such as `s0`, `2*s0` or `floordiv(s0 + 1, 2)`. */
export type Dim = number | string;

/** What is known of a tensor before it exists. */
export interface TensorMeta {
  /** As in `DTypeName`: `float32`, `int64`, ... */
  readonly dtype: string;
  readonly shape: readonly Dim[];
  readonly stride?: readonly Dim[];
  readonly device?: string;
  readonly requiresGrad?: boolean;
}

/** What is known of a number; `value` is its expression, or what it was in the example. */
export interface ScalarMeta {
  readonly scalar: 'int' | 'float' | 'bool';
  readonly value?: Dim;
}

/** What is known of a node's value; a list for a node of several results, null where nothing is known. */
export type ValueMeta = TensorMeta | ScalarMeta | null | readonly ValueMeta[];

/** One module call that a node came from: `path` is the qualified name, `type` the class. */
export interface ModuleCall {
  readonly path: string;
  readonly type: string;
  /** How many calls of the same module came before it, where there were any. */
  readonly call?: number;
}

/** A use of another node's value. @example { ref: 'linear_1' } */
export interface NodeReference {
  readonly ref: string;
}

/**
 * What a node is given. Whole numbers are integers; a float is always `{ float }`, because 2 and 2.0 promote differently;
 * `{ int }` holds the digits of what a number cannot; `{ graph }` names a sub-graph.
 */
export type GraphArgument =
  | null
  | boolean
  | number
  | string
  | NodeReference
  | { readonly float: number | 'inf' | '-inf' | 'nan' }
  | { readonly int: string }
  | { readonly complex: readonly [re: number, im: number] }
  | { readonly dtype: string }
  | { readonly device: string }
  | { readonly layout: string }
  | { readonly memoryFormat: string }
  | { readonly graph: string }
  | { readonly dict: Readonly<Record<string, GraphArgument>> }
  | readonly GraphArgument[];

interface NodeBase {
  /** Unique in its graph. */
  readonly name: string;
  readonly meta?: ValueMeta;
  /** The module calls around it in the original model, outermost first. */
  readonly modules?: readonly ModuleCall[];
  /** The line of the original model that it came from: `/model.py:12: return self.fc(x)`. */
  readonly source?: string;
}

/** An input of the graph. */
export interface PlaceholderNode extends NodeBase {
  readonly kind: 'placeholder';
}

/** A parameter, buffer or constant of the module that owns the graph, by qualified name. */
export interface AttributeNode extends NodeBase {
  readonly kind: 'attribute';
  readonly target: string;
  readonly role: 'parameter' | 'buffer';
  /** False for a buffer that no state dict holds: constants, and buffers registered so. */
  readonly persistent?: boolean;
}

/** An operator: `aten::add.Tensor` as `callOp` takes it (keyword arguments in camelCase), `scalar::`, `higher_order::`. */
export interface CallNode extends NodeBase {
  readonly kind: 'call';
  readonly op: string;
  readonly args: readonly GraphArgument[];
  readonly kwargs?: Readonly<Record<string, GraphArgument>>;
  /** Which draw of random numbers it is in the call of its module, where a part of a graph cannot tell by counting. */
  readonly draw?: number;
}

/** A call of a module of the owner, by qualified name: what the root graph of a pipe is made of. */
export interface ModuleCallNode extends NodeBase {
  readonly kind: 'module';
  readonly target: string;
  readonly args: readonly GraphArgument[];
  readonly kwargs?: Readonly<Record<string, GraphArgument>>;
}

/** One element of a value that is a list. */
export interface ElementNode extends NodeBase {
  readonly kind: 'element';
  readonly of: NodeReference;
  readonly index: number;
}

/** What the graph returns: one value, or lists and dictionaries of values. Always the last node. */
export interface OutputNode extends NodeBase {
  readonly kind: 'output';
  readonly value: GraphArgument;
}

/** A node of a graph. */
export type GraphNode = PlaceholderNode | AttributeNode | CallNode | ModuleCallNode | ElementNode | OutputNode;

/** The kinds of nodes. */
export type GraphNodeKind = GraphNode['kind'];

/** Bounds of a symbol or expression, both included; null is unbounded. */
export interface DimRange {
  readonly min: number | null;
  readonly max: number | null;
  /** A lower bound of 2 is meant: the exporter of PyTorch writes 2 for every dynamic size, where 0 and 1 work too. */
  readonly strict?: true;
}

/**
 * How a graph is called, where it is not simply its placeholders in order: the caller's arguments as trees whose leaves
 * are references to placeholders, or the constants that were fixed when the model was traced.
 */
export interface CallSignature {
  readonly args: readonly GraphArgument[];
  readonly kwargs: Readonly<Record<string, GraphArgument>>;
  /** Names of the positional parameters, then of the keyword ones, where known. */
  readonly names?: readonly string[];
}

/** A graph: nodes in the order of execution, the output last. */
export interface Graph {
  readonly nodes: readonly GraphNode[];
  /** Sub-graphs by the name in `{ graph }` arguments. */
  readonly graphs?: Readonly<Record<string, Graph>>;
  /** Ranges by symbol or expression. */
  readonly ranges?: Readonly<Record<string, DimRange>>;
  readonly signature?: CallSignature;
  /** Said of graphs that come from `traceModule`. */
  readonly traced?: TraceFacts;
}

/** What a graph says of how it was traced. */
export interface TraceFacts {
  /** Why all sizes are those of the example, where free ones were not asked for and did not work. */
  readonly fixedBecause: string | null;
}

/** The operator that marks the border of two stages: no inputs, no result, no effect. */
export const pipeSplitOp = 'pippy::_pipe_split';

/** The operator that says whether the module that owns the graph is in training: no inputs, a boolean. */
export const trainingOp = 'pipewright::training';

/** Refuses what is no graph at first sight; `validateGraph` looks closer. @example needNodes('usersOf', graph) */
export function needNodes(where: string, graph: unknown): void {
  checkArgument('needNodes', typeof where === 'string', ['where', where], 'a string');
  const nodes: unknown = typeof graph === 'object' && graph !== null ? Reflect.get(graph, 'nodes') : undefined;
  checkArgument(where, Array.isArray(nodes), ['the graph', graph], 'a graph: { nodes: [...] }');
}

/** Whether an argument is a use of a node. @example isReference({ ref: 'x' }) // true */
export function isReference(value: unknown): value is NodeReference {
  return typeof value === 'object' && value !== null && 'ref' in value;
}

/**
 * The argument with every leaf that is a reference replaced.
 *
 * @example mapReferences(node.args, ({ ref }) => ({ ref: renamed.get(ref) ?? ref }))
 */
export function mapReferences(
  value: GraphArgument,
  replace: (reference: NodeReference) => GraphArgument,
): GraphArgument {
  if (typeof value !== 'object' || value === null) return value;
  if (isList(value)) return value.map((item) => mapReferences(item, replace));
  if ('ref' in value) return replace(value);
  if ('dict' in value)
    return {
      dict: Object.fromEntries(Object.entries(value.dict).map(([key, item]) => [key, mapReferences(item, replace)])),
    };
  return value;
}

/** Calls `visit` with the name of every node that an argument uses, in order, repeats included. @example eachReference(node.args, (name) => used.add(name)) */
export function eachReference(value: GraphArgument, visit: (name: string) => void): void {
  if (typeof value !== 'object' || value === null) return;
  if (isList(value)) for (const item of value) eachReference(item, visit);
  else if ('ref' in value) visit(value.ref);
  else if ('dict' in value) for (const item of Object.values(value.dict)) eachReference(item, visit);
}

/** Where a node came from, for messages: its module and the line of the original model. @example originOf(node) // 'from layers.1, at /model.py:12: return self.fc(x)' */
export function originOf(node: GraphNode): string {
  needNode('originOf', node);
  const module = node.modules?.at(-1)?.path ?? '';
  const parts = [
    ...(module === '' ? [] : [`from ${module}`]),
    ...(node.source === undefined ? [] : [`at ${node.source}`]),
  ];
  return parts.join(', ');
}

/** The names of the nodes that a node uses, each once, in order of first use. @example inputsOf(node) // ['x', 'weight'] */
export function inputsOf(node: GraphNode): string[] {
  const names = new Set<string>();
  const add = (name: string): unknown => names.add(name);
  needNode('inputsOf', node);
  switch (node.kind) {
    case 'call':
    case 'module':
      eachReference(node.args, add);
      for (const value of Object.values(node.kwargs ?? {})) eachReference(value, add);
      break;
    case 'element':
      add(node.of.ref);
      break;
    case 'output':
      eachReference(node.value, add);
      break;
    case 'placeholder':
    case 'attribute':
      break;
  }
  return [...names];
}

/** The node with every use of another node replaced; the rest stays. @example mapNodeReferences(node, ({ ref }) => ({ ref: renamed.get(ref) ?? ref })) */
export function mapNodeReferences(node: GraphNode, replace: (reference: NodeReference) => NodeReference): GraphNode {
  needNode('mapNodeReferences', node);
  switch (node.kind) {
    case 'call':
    case 'module':
      return {
        ...node,
        args: node.args.map((value) => mapReferences(value, replace)),
        ...(node.kwargs === undefined
          ? {}
          : {
              kwargs: Object.fromEntries(
                Object.entries(node.kwargs).map(([key, value]) => [key, mapReferences(value, replace)]),
              ),
            }),
      };
    case 'element':
      return { ...node, of: replace(node.of) };
    case 'output':
      return { ...node, value: mapReferences(node.value, replace) };
    case 'placeholder':
    case 'attribute':
      return node;
  }
}

function needNode(where: string, node: unknown): void {
  if (typeof node !== 'object' || node === null || !('kind' in node))
    checkArgument(where, false, ['the node', node], "a node of a graph: { kind: 'call', ... }");
}

/** For every node the names of the nodes that use it, in order. @example usersOf(graph).get('x') // ['linear'] */
export function usersOf(graph: Graph): Map<string, string[]> {
  needNodes('usersOf', graph);
  const users = new Map<string, string[]>(graph.nodes.map((node) => [node.name, []]));
  for (const node of graph.nodes) for (const name of inputsOf(node)) users.get(name)?.push(node.name);
  return users;
}

/** The placeholders of a graph in order. @example placeholdersOf(graph).map((node) => node.name) // ['x'] */
export function placeholdersOf(graph: Graph): PlaceholderNode[] {
  needNodes('placeholdersOf', graph);
  return graph.nodes.filter((node): node is PlaceholderNode => node.kind === 'placeholder');
}

/** The output node. @example outputOf(graph).value // { ref: 'linear_8' } */
export function outputOf(graph: Graph): OutputNode {
  needNodes('outputOf', graph);
  const last = graph.nodes.at(-1);
  checkArgument('outputOf', last?.kind === 'output', ['the last node', last], 'a graph that ends with its output');
  return last as OutputNode;
}

/** The number of a `{ float }` argument. @example floatNumber('-inf') // -Infinity */
export function floatNumber(value: number | 'inf' | '-inf' | 'nan'): number {
  if (typeof value === 'number') return value;
  return value === 'inf' ? Number.POSITIVE_INFINITY : value === '-inf' ? Number.NEGATIVE_INFINITY : Number.NaN;
}
