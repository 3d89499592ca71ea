/**
 * @file Puts the borders of stages into a graph: before or after modules by name, or so that a given number of stages
 * take equally long. Returns a graph with marks; `splitGraph` cuts there.
 */

import { checkArgument, checkChoice, checkCount, checkOptions, didYouMean } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';
import { type CallNode, type Graph, type GraphNode, inputsOf, needNodes, pipeSplitOp } from '../graph/graph.ts';
import { bytesOf, costOf, type ExampleSizes } from '../graph/node-cost.ts';
import { type FlatGraph, type FlatNode, flattenRegions, nestRegions } from '../graph/regions.ts';
import { pointBorders, type SplitSpec } from '../graph/split-point.ts';
import { unusedName } from '../graph/unused-name.ts';
import { chooseBorders } from './balance.ts';
import { usesOfChanged } from './own-changes.ts';
import { mergeAttributes, versionChanges } from './versions.ts';

/** The module that a call of it is named by: `block` for `block@1`. */
function moduleName(path: string): string {
  return path.replace(/@\d+/g, '');
}

/** The graph without the marks it has. */
export function withoutMarks(graph: Graph): Graph {
  needNodes('withoutMarks', graph);
  const flat = flattenRegions(graph);
  return rebuild(graph, { ...flat, nodes: flat.nodes.filter(({ node }) => !isMark(node)) });
}

/**
 * The graph with marks before or after modules, for every call of them.
 *
 * @example cutAtModules(graph, { 'layers.4': SplitPoint.BEGINNING })
 */
export function cutAtModules(graph: Graph, spec: SplitSpec): Graph {
  needNodes('cutAtModules', graph);
  checkArgument(
    'cutAtModules',
    isPlainObject(spec),
    ['splitSpec', spec],
    "module names: { 'layers.4': SplitPoint.BEGINNING }",
  );
  const { nodes: flat, graphs } = flattenRegions(graph);
  const first = flat.findIndex(({ node }) => isInside(node));
  const places = new Set<number>();
  for (const [name, point] of Object.entries(spec)) {
    const { before, after } = pointBorders(name, point);
    const calls = callsOf(flat, name);
    if (calls.length === 0) throw unknownModule(flat, name);
    for (const { start, end } of calls) {
      if (before) places.add(start);
      if (after) places.add(end);
    }
  }
  return mark(
    graph,
    { nodes: flat, graphs },
    [...places].map((place) => Math.max(place, first)),
  );
}

/** Where the calls of a module begin and end among the nodes. */
function callsOf(flat: readonly FlatNode[], name: string): { readonly start: number; readonly end: number }[] {
  const calls: { path: string; start: number; end: number }[] = [];
  flat.forEach(({ node }, i) => {
    if (!isInside(node)) return;
    const call = node.modules?.find(({ path }) => path !== '' && moduleName(path) === name);
    if (call === undefined) return;
    const last = calls.at(-1);
    const goesOn = last?.path === call.path && flat.slice(last.end, i).every((each) => !leaves(each.node, name));
    if (goesOn) last.end = i + 1;
    else calls.push({ path: call.path, start: i, end: i + 1 });
  });
  return calls;
}

/** Whether a node comes from outside a module: then the module's call is over. */
function leaves(node: GraphNode, name: string): boolean {
  if (!isInside(node) || node.modules === undefined) return false;
  return !node.modules.some(({ path }) => moduleName(path) === name);
}

function isInside(node: GraphNode): boolean {
  return node.kind !== 'placeholder' && node.kind !== 'attribute' && node.kind !== 'output';
}

function unknownModule(flat: readonly FlatNode[], name: string): PipelineError {
  const known = new Set(flat.flatMap(({ node }) => node.modules ?? []).map(({ path }) => moduleName(path)));
  known.delete('');
  const some = [...known].slice(0, 8).join(', ');
  return new PipelineError(
    'UNKNOWN_MODULE',
    `splitSpec: the graph has no module '${name}'${didYouMean(name, known)}; there are ${some}${known.size > 8 ? ', …' : ''}`,
    { name },
  );
}

/** How the borders of a given number of stages are chosen. */
export interface BalanceOptions {
  /** Seconds of the forward of each node, by name, as measured; estimated from shapes where left out. */
  readonly seconds?: ReadonlyMap<string, number> | undefined;
  /** Sizes of free dimensions to count with, by symbol. */
  readonly sizes?: ExampleSizes | undefined;
  /** Bytes of parameters, with gradients and optimizer state, that a stage may hold. */
  readonly memoryLimit?: number | undefined;
  /**
   * Where borders may be: between the numbered modules of lists (layers), or between any modules. Default: layers, where
   * there are enough of them.
   */
  readonly borders?: 'layers' | 'modules' | undefined;
  /** Bytes per byte of parameters: gradients and optimizer state included. Default 4, as for Adam. */
  readonly stateFactor?: number | undefined;
}

/**
 * The graph with marks that make a number of stages of about equal cost, at borders of modules where little is sent.
 *
 * @example splitGraph(cutBalanced(graph, 4)).stages.length // 4
 */
export function cutBalanced(graph: Graph, stages: number, options: BalanceOptions = {}): Graph {
  checkOptions('cutBalanced', options, ['seconds', 'sizes', 'memoryLimit', 'borders', 'stateFactor']);
  checkCount('cutBalanced', 'stages', stages);
  needNodes('cutBalanced', graph);
  const { nodes: all, graphs } = flattenRegions(graph);
  const flat = all.filter(({ node }) => !isMark(node));
  const inside = flat.flatMap(({ node }, i) => (isInside(node) ? [i] : []));
  const nodes = new Map(flat.map(({ node }) => [node.name, node]));
  const { sizes, seconds } = options;
  const costs = inside.map((at) => {
    const { node } = flat[at]!;
    return seconds?.get(node.name) ?? costOf(node, nodes, sizes, graphs).seconds;
  });
  const ends = inside.map((at) => flat[at]!.node);
  const divides = dividesUses(flat, inside);
  const between = (isBorder: (before: GraphNode, after: GraphNode) => boolean): boolean[] =>
    ends.map((node, i) => i > 0 && node.kind !== 'element' && !divides[i]! && isBorder(ends[i - 1]!, node));
  const layers = between((before, after) => layerOf(before) !== layerOf(after));
  const wanted = checkChoice('cutBalanced', 'borders', options.borders ?? 'layers', ['layers', 'modules']);
  const areEnough = layers.filter(Boolean).length >= stages - 1;
  const borders = chooseBorders({
    stages,
    costs,
    memory: parameterBytes(flat, inside, nodes).map((bytes) => bytes * (options.stateFactor ?? 4)),
    crossing: crossingBytes(flat, inside, sizes),
    allowed: wanted === 'layers' && (areEnough || options.borders === 'layers') ? layers : between(isModuleBorder),
    memoryLimit: options.memoryLimit,
  });
  return mark(
    graph,
    { nodes: flat, graphs },
    borders.map((border) => inside[border]!),
  );
}

/** The graph with a mark at every border of layers: the numbered modules of lists, and what lies between them. */
export function cutAtLayers(graph: Graph): Graph {
  needNodes('cutAtLayers', graph);
  const { nodes: flat, graphs } = flattenRegions(graph);
  const inside = flat.flatMap(({ node }, i) => (isInside(node) ? [i] : []));
  const divides = dividesUses(flat, inside);
  const places = inside.filter((at, i) => {
    const { node } = flat[at]!;
    const before = flat[inside[i - 1] ?? at]!;
    return i > 0 && node.kind !== 'element' && !divides[i]! && layerOf(before.node) !== layerOf(node);
  });
  return mark(graph, { nodes: flat, graphs }, places);
}

/** The graph with a mark before each of the named nodes. @example cutBefore(graph, plan.cutBefore) */
export function cutBefore(graph: Graph, names: readonly string[]): Graph {
  needNodes('cutBefore', graph);
  checkArgument('cutBefore', Array.isArray(names), ['the names', names], 'an array of names of nodes');
  const { nodes: flat, graphs } = flattenRegions(graph);
  const places = names.map((name) => {
    const at = flat.findIndex(({ node }) => node.name === name && isInside(node));
    if (at >= 0) return at;
    throw new PipelineError(
      'BAD_ARGUMENT',
      `cutBefore: the plan cuts before the node '${name}', which the graph does not have; plan the model as it is now`,
      { name },
    );
  });
  return mark(graph, { nodes: flat, graphs }, places);
}

/** Whether a module begins or ends between two nodes. */
function isModuleBorder(before: GraphNode, after: GraphNode): boolean {
  const [a, b] = [before.modules ?? [], after.modules ?? []];
  return a.length !== b.length || a.some(({ path }, i) => path !== b[i]?.path);
}

/** The outermost numbered module that a node came from: `layers.3`; nothing outside of lists. */
function layerOf({ modules = [] }: GraphNode): string {
  return modules.find(({ path }) => /(^|\.)\d+(@\d+)?$/.test(path))?.path ?? '';
}

/** Whether a border before each place would lie between uses of a buffer that is changed in place: they are of one stage. */
function dividesUses(flat: readonly FlatNode[], inside: readonly number[]): boolean[] {
  const order = new Map(inside.map((at, i) => [flat[at]!.node.name, i]));
  const lists = inside.map((): FlatNode[] => []);
  const versioned = versionChanges(mergeAttributes(flat));
  let place = inside.length - 1;
  // What is made for a node comes right before it.
  for (const each of versioned.toReversed()) {
    place = order.get(each.node.name) ?? place;
    if (isInside(each.node)) lists[place]!.push(each);
  }
  const divides = inside.map(() => false);
  for (const { users } of usesOfChanged(lists, new Map(versioned.map(({ node }) => [node.name, node]))).values())
    divides.fill(true, Math.min(...users) + 1, Math.max(...users) + 1);
  return divides;
}

/** Bytes of the parameters that each node is the first to use. */
function parameterBytes(
  flat: readonly FlatNode[],
  inside: readonly number[],
  nodes: ReadonlyMap<string, GraphNode>,
): number[] {
  const seen = new Set<string>();
  return inside.map((at) => {
    let bytes = 0;
    for (const name of inputsOf(flat[at]!.node)) {
      const node = nodes.get(name);
      if (node?.kind !== 'attribute' || seen.has(name)) continue;
      seen.add(name);
      bytes += bytesOf(node.meta);
    }
    return bytes;
  });
}

/** Bytes of the values that are made before each place and used from there on. */
function crossingBytes(
  flat: readonly FlatNode[],
  inside: readonly number[],
  sizes: ExampleSizes | undefined,
): number[] {
  const place = new Map(inside.map((at, i) => [flat[at]!.node.name, i]));
  const lastUse = new Map<string, number>();
  flat.forEach(({ node }) => {
    const at = node.kind === 'output' ? inside.length : place.get(node.name);
    if (at !== undefined) for (const name of inputsOf(node)) lastUse.set(name, at);
  });
  const change = new Array<number>(inside.length + 2).fill(0);
  inside.forEach((at, i) => {
    const { node } = flat[at]!;
    const last = lastUse.get(node.name) ?? i;
    if (Array.isArray(node.meta) || last <= i) return;
    const bytes = bytesOf(node.meta, sizes);
    change[i + 1] = change[i + 1]! + bytes;
    change[last + 1] = change[last + 1]! - bytes;
  });
  let live = 0;
  return inside.map((_, i) => (live += change[i]!));
}

function isMark(node: GraphNode): boolean {
  return node.kind === 'call' && node.op === pipeSplitOp;
}

/** The graph with a mark before each of the given places. */
function mark(graph: Graph, flat: FlatGraph, places: readonly number[]): Graph {
  const taken = new Set(flat.nodes.map(({ node }) => node.name));
  const wanted = new Set(places);
  const marked: FlatNode[] = [];
  flat.nodes.forEach((each, i) => {
    if (wanted.has(i)) {
      const name = unusedName('_pipe_split', taken);
      taken.add(name);
      const node: CallNode = { kind: 'call', name, op: pipeSplitOp, args: [] };
      marked.push({ node, regions: [] });
    }
    marked.push(each);
  });
  return rebuild(graph, { ...flat, nodes: marked });
}

function rebuild({ ranges, signature, traced }: Graph, flat: FlatGraph): Graph {
  return {
    ...nestRegions(flat),
    ...(ranges === undefined ? {} : { ranges }),
    ...(signature === undefined ? {} : { signature }),
    ...(traced === undefined ? {} : { traced }),
  };
}
