/**
 * @file Changes in place made visible: after a change, uses of the changed tensor and of its views refer to a node that
 * comes after it. Inside one stage the order of nodes is enough; between stages only references count. Traced graphs are
 * so already; those that were exported elsewhere are not.
 */
import { isList } from '../base/list.ts';
import { changedBy, mayCopy, viewedArgument } from '../graph/effects.ts';
import {
  type CallNode,
  type GraphNode,
  inputsOf,
  isReference,
  mapNodeReferences,
  type TensorMeta,
  type ValueMeta,
} from '../graph/graph.ts';
import { type FlatNode, regionsOfAlias } from '../graph/regions.ts';
import { unusedName } from '../graph/unused-name.ts';

/** A tensor: the whole of its memory, or a view. */
interface Tracked {
  /** The node that is this tensor now. */
  current: string;
  /** The modes that it was made under. */
  readonly regions: FlatNode['regions'];
  /** How it was made of another tensor; null for one with memory of its own. */
  readonly view: {
    readonly parent: Tracked;
    readonly list: CallNode;
    readonly at: number;
    readonly index: number | null;
  } | null;
  /** Changes of the memory; counted at the tensor that is no view. */
  changes: number;
  /** How many of them `current` has seen. */
  seen: number;
}

/** Nodes with every change in place visible in the references. */
export function versionChanges(flat: readonly FlatNode[]): FlatNode[] {
  if (!flat.some(({ node }) => changedBy(node).length > 0)) return [...flat];
  return new Versions(flat).run();
}

/** One node per attribute: later reads of the same become the first. */
export function mergeAttributes(flat: readonly FlatNode[]): FlatNode[] {
  const first = new Map<string, string>();
  const rename = new Map<string, string>();
  const kept: FlatNode[] = [];
  for (const { node, regions } of flat) {
    if (node.kind === 'attribute') {
      const known = first.get(node.target);
      if (known !== undefined) {
        rename.set(node.name, known);
        continue;
      }
      first.set(node.target, node.name);
    }
    kept.push({
      node: rename.size === 0 ? node : mapNodeReferences(node, ({ ref }) => ({ ref: rename.get(ref) ?? ref })),
      regions,
    });
  }
  return kept;
}

class Versions {
  private readonly flat: readonly FlatNode[];
  private readonly nodes: ReadonlyMap<string, GraphNode>;
  private readonly regions: ReadonlyMap<string, FlatNode['regions']>;
  private readonly taken: Set<string>;
  private readonly tensors = new Map<string, Tracked>();
  private readonly out: FlatNode[] = [];
  private around: FlatNode;

  constructor(flat: readonly FlatNode[]) {
    this.flat = flat;
    this.nodes = new Map(flat.map(({ node }) => [node.name, node]));
    this.regions = new Map(flat.map(({ node, regions }) => [node.name, regions]));
    this.taken = new Set(this.nodes.keys());
    this.around = flat[0]!;
  }

  run(): FlatNode[] {
    let follows = false; // a change, with nothing but aliases and elements between
    this.flat.forEach((flat, at) => {
      this.around = flat;
      if (follows && isAlias(flat.node)) return this.adopt(flat);
      const current = new Map(inputsOf(flat.node).map((name) => [name, this.refresh(name)]));
      const node = mapNodeReferences(flat.node, ({ ref }) => ({ ref: current.get(ref) ?? ref }));
      this.out.push({ node, regions: flat.regions });
      const changed = changedBy(flat.node);
      follows = changed.length > 0 || (follows && flat.node.kind === 'element');
      if (changed.length > 0) for (const name of changed) this.change(name, flat.node.name, at);
      else this.define(flat.node);
    });
    return this.out;
  }

  /**
   * An alias right after a change is the version of a tensor that has seen it: traced graphs have them. They know which
   * tensors share memory even where that cannot be told from a graph without strides.
   */
  private adopt(flat: FlatNode): void {
    const [name = ''] = inputsOf(flat.node);
    const tensor = this.tracked(name);
    tensor.current = flat.node.name;
    tensor.seen = memoryOf(tensor).changes;
    this.tensors.set(flat.node.name, tensor);
    this.out.push(flat);
  }

  /** Whether the graph has a version of a tensor right after a change. */
  private hasVersion(tensor: Tracked, at: number): boolean {
    for (let i = at + 1; ; i++) {
      const node = this.flat[i]?.node;
      if (node === undefined || (node.kind !== 'element' && !isAlias(node))) return false;
      if (isAlias(node) && this.tensors.get(inputsOf(node)[0] ?? '') === tensor) return true;
    }
  }

  private tracked(name: string): Tracked {
    let found = this.tensors.get(name);
    if (found === undefined) {
      found = { current: name, regions: this.regions.get(name) ?? [], view: null, changes: 0, seen: 0 };
      this.tensors.set(name, found);
    }
    return found;
  }

  private define(node: GraphNode): void {
    const list = node.kind === 'element' ? this.nodes.get(node.of.ref) : node;
    if (list?.kind !== 'call') return;
    const at = viewOf(list, this.nodes);
    const parent = at < 0 ? undefined : list.args[at];
    if (!isReference(parent)) return;
    const owner = this.tracked(parent.ref);
    const view = { parent: owner, list, at, index: node.kind === 'element' ? node.index : null };
    const regions = this.regions.get(node.name) ?? [];
    this.tensors.set(node.name, { current: node.name, regions, view, changes: 0, seen: memoryOf(owner).changes });
  }

  private change(name: string, by: string, at: number): void {
    const tensor = this.tracked(name);
    const memory = memoryOf(tensor);
    memory.changes++;
    if (memory !== tensor && !this.hasVersion(memory, at)) {
      const meta = this.nodes.get(memory.current)?.meta;
      memory.current = this.emit(
        {
          kind: 'call',
          name: 'alias',
          op: 'aten::alias',
          args: [{ ref: memory.current }],
          ...(meta === undefined ? {} : { meta }),
        },
        regionsOfAlias(memory.regions),
      );
    }
    memory.seen = memory.changes;
    tensor.current = by;
    tensor.seen = memory.changes;
    this.tensors.set(by, tensor);
  }

  /** The node of a tensor now; a view whose memory was changed since is made again. */
  private refresh(name: string): string {
    const tensor = this.tensors.get(name);
    return tensor === undefined ? name : this.currentOf(tensor);
  }

  private currentOf(tensor: Tracked): string {
    const { view } = tensor;
    if (view === null || tensor.seen === memoryOf(tensor).changes) return tensor.current;
    const parent = this.currentOf(view.parent);
    const args = view.list.args.map((arg, i) => (i === view.at ? { ref: parent } : arg));
    const made = this.emit({ ...view.list, args }, tensor.regions);
    if (view.index === null) tensor.current = made;
    else {
      const meta = isList(view.list.meta) ? (view.list.meta[view.index] ?? null) : null;
      tensor.current = this.emit(
        {
          kind: 'element',
          name: 'getitem',
          of: { ref: made },
          index: view.index,
          ...(meta === null ? {} : { meta }),
        },
        tensor.regions,
      );
    }
    tensor.seen = memoryOf(tensor).changes;
    return tensor.current;
  }

  private emit(node: GraphNode, regions: FlatNode['regions']): string {
    const name = unusedName(node.name, this.taken);
    this.taken.add(name);
    const { modules } = this.around.node;
    this.out.push({
      node: { ...node, name, ...(modules === undefined ? {} : { modules }) },
      regions,
    });
    return name;
  }
}

function memoryOf(tensor: Tracked): Tracked {
  let memory = tensor;
  while (memory.view !== null) memory = memory.view.parent;
  return memory;
}

function isAlias(node: GraphNode): boolean {
  return node.kind === 'call' && node.op === 'aten::alias';
}

/** The argument that the result of an operator is a view of, or -1. */
function viewOf(node: CallNode, nodes: ReadonlyMap<string, GraphNode>): number {
  const at = viewedArgument(node.op);
  const parent = at < 0 ? undefined : node.args[at];
  if (!isReference(parent) || !mayCopy(node.op)) return at;
  const [given, made] = [nodes.get(parent.ref)?.meta, node.meta];
  if (!isTensor(given) || !isTensor(made)) return -1;
  const isSame = given.dtype === made.dtype && given.device === made.device;
  return isSame && liesInOrder(given) ? at : -1;
}

function isTensor(meta: ValueMeta | undefined): meta is TensorMeta {
  return meta !== undefined && meta !== null && 'shape' in meta;
}

/** Whether elements are known to lie in order: only graphs that record strides can tell. */
function liesInOrder({ shape, stride }: TensorMeta): boolean {
  if (stride === undefined) return false;
  let step = 1;
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const [size, found] = [shape[dim], stride[dim]];
    if (typeof size !== 'number' || typeof found !== 'number') return dim === 0 && found === step;
    if (size !== 1 && found !== step) return false;
    step *= size;
  }
  return true;
}
