/**
 * @file Changes in place across stages. A stage that changes a tensor made by an earlier one works on a copy of its own,
 * and makes the views of it that it uses again: tensors from another stage arrive separately, without sharing memory, and one that
 * needs a gradient must not be changed.
 */
import { PipelineError } from '../base/errors.ts';
import { changedBy, memoryOf, viewedArgument, viewedBy } from '../graph/effects.ts';
import { type CallNode, type GraphNode, inputsOf, mapNodeReferences } from '../graph/graph.ts';
import type { FlatNode } from '../graph/regions.ts';
import { unusedName } from '../graph/unused-name.ts';

type Nodes = ReadonlyMap<string, GraphNode>;

/** The nodes of all stages, with changes in place of tensors of other stages made safe. */
export function ownChangedTensors(
  bodies: readonly (readonly FlatNode[])[],
  nodes: Nodes,
  stageOf: (name: string) => number | null,
): FlatNode[][] {
  if (!bodies.some((body) => body.some(({ node }) => changedBy(node).length > 0)))
    return bodies.map((body) => [...body]);
  return new Changes(bodies, nodes, stageOf).run();
}

/** How a value lies in memory: the whole tensor, and the views that lead to it, outermost last. */
interface Lineage {
  readonly base: string;
  readonly views: readonly GraphNode[];
}

class Changes {
  private readonly bodies: readonly (readonly FlatNode[])[];
  private readonly nodes: Nodes;
  private readonly stageOf: (name: string) => number | null;
  private readonly regions: ReadonlyMap<string, FlatNode['regions']>;
  private readonly taken: Set<string>;
  /** By stage: the tensors of earlier stages that it changes, and what each is called after the last change there. */
  private readonly changed: Map<string, string>[] = [];

  constructor(bodies: readonly (readonly FlatNode[])[], nodes: Nodes, stageOf: (name: string) => number | null) {
    this.bodies = bodies;
    this.nodes = nodes;
    this.stageOf = stageOf;
    this.regions = new Map(bodies.flat().map(({ node, regions }) => [node.name, regions]));
    this.taken = new Set(nodes.keys());
  }

  run(): FlatNode[][] {
    return this.bodies.map((body, stage) => {
      const changed = new Map<string, string>();
      for (const { node } of body)
        for (const name of changedBy(node)) {
          const { base } = this.lineage(name);
          if (this.isForeign(base, stage)) changed.set(base, base);
        }
      for (const { node } of body) {
        const { base, views } = this.lineage(node.name, stage);
        if (changed.has(base) && views.length === 0) changed.set(base, node.name);
      }
      this.changed.push(changed);
      return changed.size === 0 ? [...body] : this.onCopies(body, stage, changed);
    });
  }

  private isForeign(name: string, stage: number): boolean {
    const kind = this.nodes.get(name)?.kind;
    if (kind === 'placeholder') return stage > 0;
    return kind !== 'attribute' && this.stageOf(name) !== stage;
  }

  /** The tensor that a value is part of; in a stage that changed one of another stage, that is the stage's own. */
  private lineage(name: string, within?: number): Lineage {
    const views: GraphNode[] = [];
    for (let at = name; ; ) {
      const node = this.nodes.get(at);
      const isChange = node !== undefined && changedBy(node).length > 0;
      const next = node === undefined ? null : (changedBy(node)[0] ?? viewedBy(node, this.nodes));
      if (node === undefined || next === null) return { base: at, views };
      if (!isChange && !isAlias(node)) views.push(node);
      const stage = this.stageOf(at);
      if (stage !== null && stage !== within && this.isForeign(next, stage)) {
        const { base, views: more } = this.lineage(next);
        const own = this.changed[stage]?.get(base);
        if (own !== undefined) return { base: own, views: [...views, ...more] };
      }
      at = next;
    }
  }

  /** The nodes of a stage on copies of the tensors it changes; the views of them that it uses are made again. */
  private onCopies(body: readonly FlatNode[], stage: number, changed: ReadonlyMap<string, string>): FlatNode[] {
    const copies = new Map<string, string>();
    const remade = new Map<string, string>();
    const made: FlatNode[] = [];
    const copyOf = (base: string): string => {
      let copy = copies.get(base);
      if (copy === undefined) {
        copy = this.unused(`${base}_own`);
        copies.set(base, copy);
        const clone: CallNode = { kind: 'call', name: copy, op: 'aten::clone', args: [{ ref: base }] };
        made.push({ node: { ...clone, ...metaOf(this.nodes.get(base)) }, regions: [] });
      }
      return copy;
    };
    const replace = (name: string): string => {
      if (!this.isForeign(name, stage) || isScalar(this.nodes.get(name))) return name;
      const known = remade.get(name);
      if (known !== undefined) return known;
      const { base, views } = this.lineage(name);
      if (!changed.has(base)) return name;
      let at = copyOf(base);
      for (const view of views.toReversed()) at = this.remake(view, at, made);
      remade.set(name, at);
      return at;
    };
    const rest = body.map(({ node, regions }): FlatNode => {
      const replaced = new Map(inputsOf(node).map((name) => [name, replace(name)]));
      return { node: mapNodeReferences(node, ({ ref }) => ({ ref: replaced.get(ref) ?? ref })), regions };
    });
    return [...made, ...rest];
  }

  /** The same view of another tensor. */
  private remake(view: GraphNode, of: string, made: FlatNode[]): string {
    const list = view.kind === 'element' ? (this.nodes.get(view.of.ref) as CallNode) : (view as CallNode);
    const at = viewedArgument(list.op);
    const name = this.unused(list.name);
    const args = list.args.map((arg, i) => (i === at ? { ref: of } : arg));
    const regions = this.regions.get(view.name) ?? []; // a view made without gradients has none here either
    made.push({ node: { ...list, name, args }, regions });
    if (view.kind !== 'element') return name;
    const element = this.unused(view.name);
    made.push({ node: { ...view, name: element, of: { ref: name } }, regions });
    return element;
  }

  private unused(name: string): string {
    const free = unusedName(name, this.taken);
    this.taken.add(free);
    return free;
  }
}

function isAlias(node: GraphNode): boolean {
  return node.kind === 'call' && node.op === 'aten::alias';
}

function isScalar(node: GraphNode | undefined): boolean {
  const meta = node?.meta ?? null;
  return meta !== null && 'scalar' in meta;
}

function metaOf(node: GraphNode | undefined): Pick<GraphNode, 'meta'> {
  return node?.meta === undefined ? {} : { meta: node.meta };
}

/** Who uses a buffer that is changed in place, and who changes it last. */
interface UsesOfChanged {
  readonly users: ReadonlySet<number>;
  readonly changer: number;
}

/** The buffers that are changed in place: which of the lists of nodes read or change each. */
export function usesOfChanged(lists: readonly (readonly FlatNode[])[], nodes: Nodes): Map<string, UsesOfChanged> {
  const users = new Map<string, Set<number>>();
  const changers = new Map<string, number>();
  const use = (target: string, at: number): unknown =>
    users.set(target, (users.get(target) ?? new Set<number>()).add(at));
  lists.forEach((list, at) => {
    for (const { node } of list) {
      for (const name of inputsOf(node)) {
        const found = nodes.get(name);
        if (found?.kind === 'attribute') use(found.target, at);
      }
      for (const name of changedBy(node)) {
        const memory = nodes.get(memoryOf(name, nodes));
        if (memory?.kind !== 'attribute') continue;
        changers.set(memory.target, at);
        use(memory.target, at);
      }
    }
  });
  return new Map([...changers].map(([target, changer]) => [target, { users: users.get(target)!, changer }]));
}

/** Refuses buffers that are changed in place while several stages hold a copy of their own. */
export function refuseSharedChanges(bodies: readonly (readonly FlatNode[])[], nodes: Nodes): void {
  for (const [target, { users, changer: stage }] of usesOfChanged(bodies, nodes)) {
    const all = [...users];
    if (all.length < 2) continue;
    throw new PipelineError(
      'SHARED_CHANGE',
      `split: stage ${stage} changes ${target} in place, and stages ${all.join(', ')} use it, each with a copy of its own; cut so that one stage has all uses of it`,
      { target, stages: all },
    );
  }
}

/** Where a node is: the stage of every value. */
export interface Places {
  readonly nodes: ReadonlyMap<string, GraphNode>;
  /** The stage that a value is made in; inputs of the model and attributes are in none. */
  readonly stageOf: (name: string) => number | null;
}
