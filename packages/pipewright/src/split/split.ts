/**
 * @file Splits a graph at its marks into one graph per stage. A stage is what lies between two marks; marks with nothing
 * between them are one. Values go straight from the stage that makes them to those that use them, however far apart.
 */

import { checkChoice, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { DrawCount } from '../execute/draws.ts';
import {
  type AttributeNode,
  type CallNode,
  type Graph,
  type GraphArgument,
  type GraphNode,
  inputsOf,
  mapNodeReferences,
  mapReferences,
  type OutputNode,
  pipeSplitOp,
  trainingOp,
  type ValueMeta,
} from '../graph/graph.ts';
import { type FlatGraph, type FlatNode, flattenRegions, nestRegions, regionInputs } from '../graph/regions.ts';
import { unusedName } from '../graph/unused-name.ts';
import { checkGraph } from '../graph/validate.ts';
import { type MultiUseParamSpec, MultiUseRules } from './multi-use.ts';
import { ownChangedTensors, refuseSharedChanges } from './own-changes.ts';
import { type PartAttribute, type PartInput, type SplitGraph, type StagePart, stageModuleName } from './parts.ts';
import { recomputeShared, type SharedValues } from './recompute.ts';
import { ownSizes, readSizesAtHome } from './sizes.ts';
import { mergeAttributes, versionChanges } from './versions.ts';

/** How a graph is split. */
export interface SplitGraphOptions {
  /** What happens to parameters that several stages use. Default: replicated. */
  readonly multiUse?: MultiUseParamSpec | undefined;
  /** The canonical name of an attribute, where one tensor has several. */
  readonly sameTensor?: ((target: string) => string) | undefined;
  /** Values that several stages use: sent, computed again where used, or whichever is cheaper. Default: sent. */
  readonly shared?: SharedValues | undefined;
}

/**
 * Splits a graph at its marks.
 *
 * @example splitGraph(traceModule(model, [x]).graph).stages.map((stage) => formatGraph(stage.graph))
 */
export function splitGraph(graph: Graph, options: SplitGraphOptions = {}): SplitGraph {
  checkOptions('splitGraph', options, ['multiUse', 'sameTensor', 'shared']);
  checkGraph(graph, 'splitGraph');
  return new Splitter(graph, options).run();
}

class Splitter {
  private readonly graph: Graph;
  private readonly options: SplitGraphOptions;
  private readonly nodes: Map<string, GraphNode>;
  private readonly flat: readonly FlatNode[];
  private readonly graphs: FlatGraph['graphs'];
  private readonly stageOfNode = new Map<string, number>();
  private readonly notes: string[] = [];
  private readonly owners = new Map<string, number>();
  private readonly canonical: (target: string) => string;
  private readonly rules: MultiUseRules;
  private bodies: FlatNode[][];

  constructor(graph: Graph, options: SplitGraphOptions) {
    this.graph = graph;
    this.options = options;
    const draws = new DrawCount();
    const { nodes, graphs } = flattenRegions(graph);
    this.graphs = graphs;
    const numbered = nodes.map((flat) => ({ ...flat, node: draws.number(flat.node) }));
    this.flat = ownOutputs(versionChanges(mergeAttributes(numbered)));
    this.nodes = new Map(this.flat.map(({ node }) => [node.name, node]));
    this.bodies = this.partition();
    this.canonical = options.sameTensor ?? ((target) => target);
    const parameters = this.flat.flatMap(({ node }) =>
      node.kind === 'attribute' && node.role === 'parameter' ? [node.target] : [],
    );
    this.rules = new MultiUseRules(options.multiUse, new Set(parameters), this.canonical);
  }

  run(): SplitGraph {
    const { nodes } = this;
    const stageOf = (name: string): number | null => this.stageOfNode.get(name) ?? null;
    this.bodies = ownChangedTensors(this.bodies, nodes, stageOf);
    refuseSharedChanges(this.bodies, nodes);
    const shared = checkChoice('splitGraph', 'shared', this.options.shared ?? 'send', ['send', 'recompute', 'auto']);
    if (shared !== 'send') this.bodies = recomputeShared(this.bodies, { nodes, stageOf }, shared);
    this.transmitAttributes();
    const home = (name: string): number | null => (nodes.get(name)?.kind === 'placeholder' ? 0 : stageOf(name));
    const { bodies, moved } = readSizesAtHome(this.bodies, home);
    this.bodies = bodies;
    for (const [name, stage] of moved) this.stageOfNode.set(name, stage);
    this.bodies = this.bodies.map((body, stage) =>
      this.askingForMode(ownSizes(body, this.foreign(body, stage), nodes)),
    );
    return this.assemble();
  }

  /** The nodes of every stage: a mark begins the next one, unless nothing lies before or after it. */
  private partition(): FlatNode[][] {
    const bodies: FlatNode[][] = [[]];
    let marks = 0;
    let isEmpty = true;
    for (const flat of this.flat) {
      const { node } = flat;
      if (node.kind === 'placeholder' || node.kind === 'attribute' || node.kind === 'output') continue;
      if (node.kind === 'call' && node.op === pipeSplitOp) {
        marks++;
        if (isEmpty) this.notes.push(`the border ${node.name} has nothing before it; it makes no stage of its own`);
        else bodies.push([]);
        isEmpty = true;
        continue;
      }
      if (node.kind === 'call' && node.op === trainingOp) continue; // every stage asks for itself
      // An element belongs to the list it is of: lists do not travel.
      const home = node.kind === 'element' ? (this.stageOfNode.get(node.of.ref) ?? 0) : bodies.length - 1;
      this.stageOfNode.set(node.name, home);
      bodies[home]!.push(flat);
      if (home === bodies.length - 1) isEmpty = false;
    }
    if (isEmpty && bodies.length > 1) {
      bodies.pop();
      this.notes.push('the last border has nothing after it; it makes no stage of its own');
    }
    return this.joinUseless(bodies, marks);
  }

  /** No stage would wait for one whose values are not used: it is joined with the one after it. */
  private joinUseless(bodies: FlatNode[][], marks: number): FlatNode[][] {
    const wanted = new Set(inputsOf(this.output()));
    const joined: FlatNode[][] = [];
    let carry: FlatNode[] = [];
    bodies.forEach((body, stage) => {
      const all = [...carry, ...body];
      const made = new Set(all.map(({ node }) => node.name));
      const isUsed =
        [...wanted].some((name) => made.has(name)) ||
        bodies
          .slice(stage + 1)
          .some((later) => later.some(({ node }) => inputsOf(node).some((name) => made.has(name))));
      if (isUsed || stage === bodies.length - 1) {
        joined.push(all);
        carry = [];
      } else {
        carry = all;
        this.notes.push(`stage ${joined.length} computes nothing that other stages use; it is joined with the next`);
      }
    });
    joined.forEach((body, stage) => {
      for (const { node } of body) this.stageOfNode.set(node.name, stage);
    });
    if (marks > 0 && joined.length === 1) this.notes.push('no border divides the model; it is one stage');
    return joined;
  }

  /** Values that a stage uses and does not make, in order of first use; attributes are its own. */
  private foreign(body: readonly FlatNode[], stage: number): string[] {
    const made = new Set(body.map(({ node }) => node.name));
    const found = new Set<string>();
    for (const { node } of body)
      for (const name of inputsOf(node))
        if (!made.has(name) && (this.nodes.get(name)?.kind !== 'attribute' || this.homeOf(name) !== stage))
          found.add(name);
    return [...found].filter((name) => this.nodes.get(name)?.kind !== 'attribute' || this.isSent(name));
  }

  // --- parameters of several stages ----------------------------------------------------------------------------------

  /** Names of attribute nodes whose value travels, by their node in the stage that owns them. */
  private readonly sent = new Map<string, number>();

  private isSent(name: string): boolean {
    return this.sent.has(name);
  }

  private homeOf(name: string): number | null {
    return this.sent.get(name) ?? null;
  }

  /** Parameters that are sent: all names of one tensor become one node, which belongs to the first stage that uses it. */
  private transmitAttributes(): void {
    const { canonical } = this;
    const first = new Map<string, { readonly name: string; readonly stages: Set<number> }>();
    const users = this.bodies.map((body) => body.flatMap(({ node }) => inputsOf(node)));
    users.forEach((names, stage) => {
      for (const name of names) {
        const node = this.nodes.get(name);
        if (node?.kind !== 'attribute' || node.role !== 'parameter') continue;
        const key = canonical(node.target);
        const known = first.get(key) ?? { name, stages: new Set<number>() };
        known.stages.add(stage);
        first.set(key, known);
      }
    });
    for (const [key, { stages }] of first) {
      const owner = this.rules.ownerOf(key, stages);
      if (stages.size > 1) this.owners.set(key, owner);
    }
    const rename = new Map<string, string>();
    for (const [name, node] of this.nodes) {
      if (node.kind !== 'attribute') continue;
      const found = first.get(canonical(node.target));
      if (found === undefined || found.stages.size < 2 || this.rules.useOf(canonical(node.target)) !== 'transmit')
        continue;
      rename.set(name, found.name);
      this.sent.set(found.name, this.owners.get(canonical(node.target))!);
    }
    if (rename.size === 0) return;
    this.bodies = this.bodies.map((body) =>
      body.map(({ node, regions }) => ({
        node: mapNodeReferences(node, ({ ref }) => ({ ref: rename.get(ref) ?? ref })),
        regions,
      })),
    );
  }

  // --- putting together ----------------------------------------------------------------------------------------------

  private assemble(): SplitGraph {
    const modelInputs = this.flat.flatMap(({ node }) => (node.kind === 'placeholder' ? [node.name] : []));
    const needs = this.bodies.map((body, stage) => this.foreign(body, stage));
    const wanted = inputsOf(this.output());
    const makerOf = (name: string): number | null => this.sent.get(name) ?? this.stageOfNode.get(name) ?? null;
    const outputs = this.bodies.map((_, stage) => {
      const users = new Map<string, number[]>();
      needs.forEach((names, user) => {
        for (const name of names)
          if (makerOf(name) === stage && user !== stage) users.set(name, [...(users.get(name) ?? []), user]);
      });
      for (const name of wanted) if (makerOf(name) === stage && !users.has(name)) users.set(name, []);
      return [...users].map(([name, to]) => ({ name, to, meta: this.metaOf(name) }));
    });
    const stages = this.bodies.map((body, index): StagePart => {
      const inputs = needs[index]!.map((name): PartInput => {
        const stage = makerOf(name);
        const place =
          stage === null ? modelInputs.indexOf(name) : (outputs[stage] ?? []).findIndex((each) => each.name === name);
        if (place < 0) throw new PipelineError('INTERNAL', `internal: stage ${index} uses ${name}, which nobody gives`);
        return { name, stage, index: place, meta: this.metaOf(name) };
      });
      const own = outputs[index]!;
      const { graph, attributes } = this.stageGraph(body, index, { inputs, outputs: own.map(({ name }) => name) });
      return { index, name: stageModuleName(index), graph, inputs, outputs: own, attributes };
    });
    return { root: this.rootGraph(stages, modelInputs), stages, owners: this.owners, notes: this.notes };
  }

  private output(): OutputNode {
    return this.flat.at(-1)!.node as OutputNode;
  }

  /** The nodes of a stage, with the node for its training mode if one depends on it. */
  private askingForMode(body: readonly FlatNode[]): FlatNode[] {
    const used = new Set(body.flatMap((flat) => [...inputsOf(flat.node), ...regionInputs(flat)]));
    const asking = this.flat.filter(
      ({ node }) => node.kind === 'call' && node.op === trainingOp && used.has(node.name),
    );
    return [...asking, ...body];
  }

  private metaOf(name: string): ValueMeta {
    return this.nodes.get(name)?.meta ?? null;
  }

  private stageGraph(
    body: readonly FlatNode[],
    stage: number,
    { inputs, outputs }: { readonly inputs: readonly PartInput[]; readonly outputs: readonly string[] },
  ): { readonly graph: Graph; readonly attributes: readonly PartAttribute[] } {
    const given = new Set(inputs.map(({ name }) => name));
    const used = new Set([...body.flatMap(({ node }) => inputsOf(node)), ...outputs]);
    const attributes = [...used].flatMap((name): AttributeNode[] => {
      const node = this.nodes.get(name);
      return node?.kind === 'attribute' && !given.has(name) && (!this.isSent(name) || this.homeOf(name) === stage)
        ? [node]
        : [];
    });
    const taken = new Set([...used, ...body.map(({ node }) => node.name)]);
    // A parameter that is sent is a node of its own, so that its gradient comes back through it.
    const leaving = new Map(
      outputs.filter((name) => this.isSent(name)).map((name) => [name, unusedName(`${name}_sent`, taken)]),
    );
    const flat: FlatNode[] = [
      ...inputs.map(({ name, meta }): GraphNode => ({ kind: 'placeholder', name, ...(meta === null ? {} : { meta }) })),
      ...attributes,
    ].map((node) => ({ node, regions: [] }));
    flat.push(...body);
    for (const [name, copy] of leaving)
      flat.push({
        node: { kind: 'call', name: copy, op: 'aten::alias', args: [{ ref: name }], meta: this.metaOf(name) },
        regions: [],
      });
    const refs = outputs.map((name) => ({ ref: leaving.get(name) ?? name }));
    flat.push({
      node: {
        kind: 'output',
        name: unusedName('output', taken),
        value: refs.length === 1 ? (refs[0] as GraphArgument) : refs,
      },
      regions: [],
    });
    const { ranges, traced } = this.graph;
    const graph: Graph = {
      ...nestRegions({ nodes: flat, graphs: this.graphs }),
      ...(ranges === undefined ? {} : { ranges }),
      ...(traced === undefined ? {} : { traced }),
    };
    checkGraph(graph, `splitGraph: stage ${stage}`);
    return {
      graph,
      attributes: attributes.map(({ target, role, persistent = true, meta = null }) => ({
        target,
        role,
        persistent,
        meta,
      })),
    };
  }

  private rootGraph(stages: readonly StagePart[], modelInputs: readonly string[]): Graph {
    const nodes: GraphNode[] = this.flat.flatMap(({ node }) => (node.kind === 'placeholder' ? [node] : []));
    const taken = new Set([...modelInputs, ...stages.map(({ name }) => name)]);
    const values = new Map<string, string>(modelInputs.map((name) => [name, name]));
    for (const { name, inputs, outputs } of stages) {
      const metas = outputs.map(({ meta }) => meta);
      const isSingle = outputs.length === 1;
      const meta = isSingle ? (metas[0] ?? null) : metas;
      nodes.push({
        kind: 'module',
        name,
        target: name,
        args: inputs.map((input) => ({ ref: values.get(input.name)! })),
        ...(meta === null ? {} : { meta }),
      });
      outputs.forEach((output, index) => {
        if (isSingle) return values.set(output.name, name);
        const free = unusedName(output.name, taken);
        taken.add(free);
        nodes.push({
          kind: 'element',
          name: free,
          of: { ref: name },
          index,
          ...(output.meta === null ? {} : { meta: output.meta }),
        });
        return values.set(output.name, free);
      });
    }
    const { value } = this.output();
    nodes.push({
      kind: 'output',
      name: unusedName('output', taken),
      value: mapReferences(value, ({ ref }) => ({ ref: values.get(ref)! })),
    });
    const { ranges, signature, traced } = this.graph;
    const root: Graph = {
      nodes,
      ...(ranges === undefined ? {} : { ranges }),
      ...(signature === undefined ? {} : { signature }),
      ...(traced === undefined ? {} : { traced }),
    };
    checkGraph(root, 'splitGraph: root');
    return root;
  }
}

/** A parameter or buffer that the model returns as it is becomes a value of the last stage. */
function ownOutputs(flat: readonly FlatNode[]): FlatNode[] {
  const nodes = new Map(flat.map(({ node }) => [node.name, node]));
  const body = flat.slice(0, -1);
  const { node: output } = flat.at(-1)!;
  const made = new Map<string, string>();
  for (const name of inputsOf(output)) {
    const found = nodes.get(name);
    if (found?.kind !== 'attribute') continue;
    const copy = unusedName(`${name}_out`, new Set(nodes.keys()));
    made.set(name, copy);
    const alias: CallNode = { kind: 'call', name: copy, op: 'aten::alias', args: [{ ref: name }] };
    body.push({ node: found.meta === undefined ? alias : { ...alias, meta: found.meta }, regions: [] });
  }
  return [...body, { node: mapNodeReferences(output, ({ ref }) => ({ ref: made.get(ref) ?? ref })), regions: [] }];
}
