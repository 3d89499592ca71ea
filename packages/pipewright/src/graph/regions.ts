/**
 * @file Regions: stretches of a graph that run under a mode (gradients off, autocast, recomputing for backward). In a
 * graph a region is a higher-order call with a sub-graph. To cut a graph anywhere, it is flattened to nodes that know their regions,
 * and nested again afterwards.
 */
import { isList } from '../base/list.ts';
import {
  type CallNode,
  type ElementNode,
  eachReference,
  type Graph,
  type GraphArgument,
  type GraphNode,
  inputsOf,
  isReference,
  type ModuleCall,
  mapNodeReferences,
  mapReferences,
  type NodeReference,
  outputOf,
  placeholdersOf,
  type ValueMeta,
} from './graph.ts';
import { unusedName } from './unused-name.ts';

/** A mode that nodes run under. */
export interface Region {
  /** The higher-order operator without its namespace: `wrap_with_set_grad_enabled`, ... */
  readonly op: string;
  /** What the operator takes before the sub-graph. */
  readonly before: readonly GraphArgument[];
  /** Keyword arguments of the operator. */
  readonly kwargs?: Readonly<Record<string, GraphArgument>> | undefined;
  /** Tells calls apart: neighbours with the same key are one region. */
  readonly key: string;
}

/** A node outside any sub-graph, with the regions it runs in, outermost first. */
export interface FlatNode {
  readonly node: GraphNode;
  readonly regions: readonly Region[];
}

/** A graph laid flat. */
export interface FlatGraph {
  readonly nodes: readonly FlatNode[];
  /** The sub-graphs of nodes that are no regions, such as branches and loops, by the names that the nodes have for them. */
  readonly graphs: Readonly<Record<string, Graph>>;
}

/** The values that the regions of a node depend on themselves. */
export function regionInputs({ regions }: FlatNode): string[] {
  const names: string[] = [];
  for (const { before } of regions) eachReference(before, (name) => names.push(name));
  return names;
}

/** Whether a region turns gradients off. */
export function isWithoutGradients({ op, before }: Region): boolean {
  return op === 'wrap_with_set_grad_enabled' && before[0] === false;
}

/** The regions of an alias that stands for a tensor itself: it passes gradients on wherever the tensor was made. */
export function regionsOfAlias(regions: readonly Region[]): readonly Region[] {
  return regions.some(isWithoutGradients) ? regions.filter((region) => !isWithoutGradients(region)) : regions;
}

/** Number of arguments that each region's operator takes before the sub-graph. */
const regionOps: ReadonlyMap<string, number> = new Map([
  ['wrap_with_set_grad_enabled', 1],
  ['wrap_with_autocast', 4],
  ['tag_activation_checkpoint', 0],
  ['run_if', 1],
]);

const prefix = 'higher_order::';

/** The nodes of a graph with those of its regions in place. Names of values that are visible outside stay. */
export function flattenRegions(graph: Graph): FlatGraph {
  return new Flattener(graph).run();
}

class Flattener {
  private readonly graph: Graph;
  private readonly names: Set<string>;
  private readonly flat: FlatNode[] = [];
  private readonly graphs = new Map<string, Graph>();
  private numRegions = 0;

  constructor(graph: Graph) {
    this.graph = graph;
    this.names = new Set(graph.nodes.map((node) => node.name));
  }

  run(): FlatGraph {
    this.inline(this.graph, new Map(), { regions: [], modules: undefined });
    return { nodes: this.flat, graphs: Object.fromEntries(this.graphs) };
  }

  /** Adds the nodes of a graph; `known` says what its names are called outside. */
  private inline(graph: Graph, known: Map<string, NodeReference>, around: Around): void {
    const regionCalls = new Set<string>();
    const users = new Map<string, GraphNode[]>();
    for (const node of graph.nodes)
      for (const name of inputsOf(node)) users.set(name, [...(users.get(name) ?? []), node]);
    const isTop = graph === this.graph;
    const rename = (reference: NodeReference): NodeReference => known.get(reference.ref) ?? reference;
    for (const node of graph.nodes) {
      if (!isTop && (node.kind === 'placeholder' || node.kind === 'output')) continue;
      if (node.kind === 'call') {
        const region = this.regionOf(node, graph, rename);
        if (region !== null) {
          regionCalls.add(node.name);
          this.open(node, region, { known, users: users.get(node.name) ?? [], around });
          continue;
        }
      }
      if (node.kind === 'element' && regionCalls.has(node.of.ref)) continue;
      if (!isTop && !known.has(node.name)) known.set(node.name, { ref: this.unique(node.name) });
      const { ref } = rename({ ref: node.name });
      const modules = node.modules ?? around.modules;
      const own = this.keepGraphs(mapNodeReferences(node, rename), graph);
      const renamed = { ...own, name: ref, ...(modules === undefined ? {} : { modules }) };
      this.flat.push({ node: renamed, regions: node.kind === 'attribute' ? [] : around.regions });
    }
  }

  /** Puts the nodes of a region's sub-graph here. */
  private open(node: CallNode, { region, inner, operands }: FoundRegion, place: RegionPlace): void {
    const { known, users, around } = place;
    const isTop = around.regions.length === 0;
    const inside = new Map<string, NodeReference>();
    placeholdersOf(inner).forEach((input, i) => {
      const operand = operands[i]!;
      inside.set(input.name, known.get(operand.ref) ?? operand);
    });
    const { value } = outputOf(inner);
    const results = isReference(value) ? [value] : isList(value) ? value : [];
    // A value that the region returns keeps the name that it has outside.
    results.forEach((result, i) => {
      if (!isReference(result)) return;
      const visible = isReference(value)
        ? node
        : users.find((user) => user.kind === 'element' && user.index === i && user.of.ref === node.name);
      if (visible === undefined) return;
      const passedOn = inside.get(result.ref);
      if (passedOn === undefined) {
        const name = isTop ? visible.name : (known.get(visible.name)?.ref ?? this.unique(visible.name));
        inside.set(result.ref, { ref: name });
        known.set(visible.name, { ref: name });
      } else known.set(visible.name, passedOn);
    });
    const modules = node.modules ?? around.modules;
    this.inline(inner, inside, { regions: [...around.regions, region], modules });
  }

  private regionOf(
    node: CallNode,
    graph: Graph,
    rename: (reference: NodeReference) => NodeReference,
  ): FoundRegion | null {
    if (!node.op.startsWith(prefix)) return null;
    const op = node.op.slice(prefix.length);
    const count = regionOps.get(op);
    if (count === undefined) return null;
    const body = node.args[count];
    if (typeof body !== 'object' || body === null || !('graph' in body)) return null;
    const inner = graph.graphs?.[body.graph];
    const operands = node.args.slice(count + 1);
    if (inner === undefined || !operands.every(isReference)) return null;
    const key = `${op} ${this.numRegions++}`;
    const before = node.args.slice(0, count).map((value) => mapReferences(value, rename));
    return { region: { op, before, kwargs: node.kwargs, key }, inner, operands };
  }

  /** The node with names for its sub-graphs that no other has. */
  private keepGraphs(node: GraphNode, graph: Graph): GraphNode {
    if (node.kind !== 'call' || graphsIn(node).length === 0) return node;
    const keep = (name: string): string => {
      const inner = graph.graphs![name]!;
      const free = this.graphs.get(name) === inner ? name : unusedName(name, this.graphs);
      this.graphs.set(free, inner);
      return free;
    };
    return { ...node, args: node.args.map((value) => mapGraphs(value, keep)) };
  }

  private unique(name: string): string {
    const free = unusedName(name, this.names);
    this.names.add(free);
    return free;
  }
}

interface Around {
  readonly regions: readonly Region[];
  /** What nodes without module calls of their own came from. */
  readonly modules: readonly ModuleCall[] | undefined;
}

interface FoundRegion {
  readonly region: Region;
  readonly inner: Graph;
  readonly operands: readonly NodeReference[];
}

interface RegionPlace {
  readonly known: Map<string, NodeReference>;
  readonly users: readonly GraphNode[];
  readonly around: Around;
}

/** Nodes with their regions as calls of sub-graphs: the reverse of `flattenRegions`. Of the sub-graphs it takes those that are used. */
export function nestRegions({ nodes, graphs }: FlatGraph): Pick<Graph, 'nodes' | 'graphs'> {
  return nest(nodes, graphs, { level: 0, neededAfter: new Set() });
}

function nest(
  flat: readonly FlatNode[],
  known: FlatGraph['graphs'],
  { level, neededAfter }: { readonly level: number; readonly neededAfter: ReadonlySet<string> },
): Pick<Graph, 'nodes' | 'graphs'> {
  const names = new Set(flat.map(({ node }) => node.name));
  const lastUse = new Map<string, number>();
  flat.forEach(({ node }, i) => {
    for (const name of inputsOf(node)) lastUse.set(name, i);
  });
  for (const name of neededAfter) lastUse.set(name, flat.length);
  const metas = new Map(flat.map(({ node }) => [node.name, node.meta ?? null]));
  const nodes: GraphNode[] = [];
  const graphs: Record<string, Graph> = {};
  for (let start = 0; start < flat.length; ) {
    const { node, regions } = flat[start]!;
    const region = regions[level];
    if (region === undefined) {
      nodes.push(node);
      for (const name of graphsIn(node)) graphs[name] = known[name]!;
      start++;
      continue;
    }
    let end = start;
    while (end < flat.length && flat[end]!.regions[level]?.key === region.key) end++;
    const group = flat.slice(start, end);
    const outputs = group.map((each) => each.node.name).filter((name) => (lastUse.get(name) ?? -1) >= end);
    const inner = nest(group, known, { level: level + 1, neededAfter: new Set(outputs) });
    const made = new Set(group.map((each) => each.node.name));
    const inputs = [...new Set(inner.nodes.flatMap(inputsOf))].filter((name) => !made.has(name));
    const body = unusedName('body', new Set([...Object.keys(graphs), ...Object.keys(known)]));
    const values: RegionValues = { inputs, outputs, metas };
    graphs[body] = bodyOf(inner, values, made);
    const name = outputs.length === 1 ? outputs[0]! : unusedName(region.op, names);
    names.add(name);
    nodes.push(...callOf({ name, region, body, modules: commonModules(group) }, values));
    start = end;
  }
  return Object.keys(graphs).length === 0 ? { nodes } : { nodes, graphs };
}

/** The values that a region uses and those that are used after it, by name, and what is known of each. */
interface RegionValues {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly metas: ReadonlyMap<string, ValueMeta>;
}

/** The sub-graph of a region; `made` are the names of its own nodes. */
function bodyOf(
  inner: Pick<Graph, 'nodes' | 'graphs'>,
  { inputs, outputs, metas }: RegionValues,
  made: ReadonlySet<string>,
): Graph {
  return {
    nodes: [
      ...inputs.map((name): GraphNode => ({ kind: 'placeholder', name, ...knownMeta(metas, name) })),
      ...inner.nodes,
      {
        kind: 'output',
        name: unusedName('output', new Set([...inputs, ...made])),
        value: outputs.length === 1 ? { ref: outputs[0]! } : outputs.map((ref) => ({ ref })),
      },
    ],
    ...(inner.graphs === undefined ? {} : { graphs: inner.graphs }),
  };
}

interface RegionCall {
  readonly name: string;
  readonly region: Region;
  /** The name of the sub-graph. */
  readonly body: string;
  readonly modules: readonly ModuleCall[] | undefined;
}

/** The call of a region's sub-graph, and where it has several outputs a node for each. */
function callOf(
  { name, region, body, modules }: RegionCall,
  { inputs, outputs, metas }: RegionValues,
): (CallNode | ElementNode)[] {
  const single = outputs.length === 1;
  const call: CallNode = {
    kind: 'call',
    name,
    op: `${prefix}${region.op}`,
    args: [...region.before, { graph: body }, ...inputs.map((ref) => ({ ref }))],
    ...(region.kwargs === undefined || Object.keys(region.kwargs).length === 0 ? {} : { kwargs: region.kwargs }),
    ...(single ? knownMeta(metas, name) : { meta: outputs.map((each) => metas.get(each) ?? null) }),
    ...(modules === undefined ? {} : { modules }),
  };
  if (single) return [call];
  const element = (each: string, index: number): ElementNode => ({
    kind: 'element',
    name: each,
    of: { ref: name },
    index,
    ...knownMeta(metas, each),
  });
  return [call, ...outputs.map(element)];
}

function knownMeta(metas: ReadonlyMap<string, ValueMeta>, name: string): { readonly meta?: ValueMeta } {
  const meta = metas.get(name) ?? null;
  return meta === null ? {} : { meta };
}

/** The module calls that all nodes of a region came from. */
function commonModules(group: readonly FlatNode[]): readonly ModuleCall[] | undefined {
  const [first, ...rest] = group.map(({ node }) => node.modules);
  if (first === undefined) return undefined;
  const isShared = (call: ModuleCall, i: number): boolean => rest.every((each) => each?.[i]?.path === call.path);
  const end = first.findIndex((call, i) => !isShared(call, i));
  return end < 0 ? first : first.slice(0, end);
}

/** The names of the sub-graphs that a node is given. */
function graphsIn(node: GraphNode): string[] {
  const names: string[] = [];
  if (node.kind !== 'call') return names;
  for (const value of node.args)
    mapGraphs(value, (name) => {
      names.push(name);
      return name;
    });
  return names;
}

/** The argument with every name of a sub-graph replaced. */
function mapGraphs(value: GraphArgument, replace: (name: string) => string): GraphArgument {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return (value as readonly GraphArgument[]).map((item) => mapGraphs(item, replace));
  return 'graph' in value ? { graph: replace(value.graph) } : value;
}
