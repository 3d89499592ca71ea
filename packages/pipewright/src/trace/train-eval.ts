/**
 * @file One graph for training and evaluation. The model is traced in both modes; where they differ in a flag or number
 * only (dropout), the graph asks which mode it is in; changes of buffers that happen in one mode only (statistics of
 * batch normalisation) are made in that mode. Where they differ in what runs without gradients or in other types, there is
 * no such graph.
 */
import { isList } from '../base/list.ts';
import { changedBy, memoryOf } from '../graph/effects.ts';
import {
  type CallNode,
  type GraphArgument,
  type GraphNode,
  inputsOf,
  mapReferences,
  trainingOp,
} from '../graph/graph.ts';
import type { FlatNode, Region } from '../graph/regions.ts';
import { unusedName } from '../graph/unused-name.ts';
import type { Recording } from './run.ts';

/** A place in the arguments of a node: positions and names. */
type Path = readonly (number | string)[];

/** A value that differs between the modes. */
interface Difference {
  readonly path: Path;
  readonly training: GraphArgument;
  readonly evaluation: GraphArgument;
}

/** How evaluation differs from training, by the names of the recording in training. */
export interface ModeDifferences {
  readonly values: ReadonlyMap<string, readonly Difference[]>;
  /** Nodes that exist in training only. */
  readonly only: ReadonlySet<string>;
}

/** How a model differs between its modes; null where one graph cannot do both. */
export function compareModes(training: Recording, evaluation: Recording): ModeDifferences | null {
  return new ModeComparison(training, evaluation).run();
}

class ModeComparison {
  private readonly first: Recording;
  private readonly second: Recording;
  /** What names of the second recording are called in the first. */
  private readonly names = new Map<string, string>();
  private readonly values = new Map<string, readonly Difference[]>();
  private readonly only = new Set<string>();

  constructor(first: Recording, second: Recording) {
    this.first = first;
    this.second = second;
  }

  run(): ModeDifferences | null {
    const { first, second } = this;
    const targets = new Map(first.attributes.map(({ target, name }) => [target, name]));
    second.inputs.forEach(({ name }, i) => this.names.set(name, first.inputs[i]?.name ?? name));
    for (const { name, target } of second.attributes) {
      const known = targets.get(target);
      if (known === undefined) return null; // a tensor that only the other mode reads
      this.names.set(name, known);
    }
    let at = 0;
    for (const { node, regions } of first.nodes) {
      const other = second.nodes[at];
      if (other !== undefined && sameRegions(regions, other.regions) && this.match(node, other.node)) at++;
      else if (this.hasEffectOnly(node)) this.only.add(node.name);
      else return null;
    }
    if (at < second.nodes.length || !this.sameOutput()) return null;
    return { values: this.values, only: this.only };
  }

  private match(mine: GraphNode, theirs: GraphNode): boolean {
    if (mine.kind !== theirs.kind || path(mine) !== path(theirs)) return false;
    if (mine.kind === 'element' && theirs.kind === 'element') {
      if (this.names.get(theirs.of.ref) !== mine.of.ref || mine.index !== theirs.index) return false;
    } else if (mine.kind === 'call' && theirs.kind === 'call') {
      const found: Difference[] = [];
      const isSame =
        mine.op === theirs.op &&
        this.compare(mine.args, theirs.args, ['args'], found) &&
        this.compare({ dict: mine.kwargs ?? {} }, { dict: theirs.kwargs ?? {} }, ['kwargs'], found);
      if (!isSame) return false;
      if (found.length > 0) this.values.set(mine.name, found);
    } else return false;
    this.names.set(theirs.name, mine.name);
    return true;
  }

  /** Whether two arguments are the same but for flags and numbers, which are noted. */
  private compare(mine: GraphArgument, theirs: GraphArgument, at: Path, found: Difference[]): boolean {
    if (JSON.stringify(mine) === JSON.stringify(this.renamed(theirs))) return true;
    if (isList(mine) && isList(theirs))
      return (
        mine.length === theirs.length &&
        mine.every((item, i) => this.compare(item, theirs[i] as GraphArgument, [...at, i], found))
      );
    if (isDict(mine) && isDict(theirs)) {
      const keys = Object.keys(mine.dict);
      const isSame = keys.join() === Object.keys(theirs.dict).join();
      return (
        isSame &&
        keys.every((key) =>
          this.compare(mine.dict[key] as GraphArgument, theirs.dict[key] as GraphArgument, [...at, key], found),
        )
      );
    }
    const areFlags = typeof mine === 'boolean' && typeof theirs === 'boolean';
    if (!areFlags && !(isNumber(mine) && isNumber(theirs))) return false;
    found.push({ path: at, training: mine, evaluation: theirs });
    return true;
  }

  private renamed(value: GraphArgument): GraphArgument {
    return mapReferences(value, ({ ref }) => ({ ref: this.names.get(ref) ?? `${ref} of the other mode` }));
  }

  /** Whether all that a node does is to change a parameter or buffer in place: nobody reads its result. */
  private hasEffectOnly(node: GraphNode): boolean {
    if (changedBy(node).length === 0) return false;
    const { nodes, attributes } = this.first;
    const known = new Map(nodes.map((each) => [each.node.name, each.node]));
    const targets = new Set(attributes.map(({ name }) => name));
    if (!changedBy(node).every((name) => targets.has(memoryOf(name, known)))) return false;
    return !nodes.some((each) => inputsOf(each.node).includes(node.name)) && !this.isReturned(node.name);
  }

  private isReturned(name: string): boolean {
    return JSON.stringify(this.first.output).includes(JSON.stringify({ ref: name }));
  }

  private sameOutput(): boolean {
    return JSON.stringify(this.first.output) === JSON.stringify(this.renamed(this.second.output));
  }
}

/** Whether nodes run with the same gradients and types; computing again for backward changes no values. */
function sameRegions(mine: readonly Region[], theirs: readonly Region[]): boolean {
  const keys = (regions: readonly Region[]): string =>
    regions.flatMap(({ op, key }) => (op === 'tag_activation_checkpoint' ? [] : [key])).join();
  return keys(mine) === keys(theirs);
}

/** A recording in training made to do what each mode does. */
export function joinModes(recording: Recording, differences: ModeDifferences): Recording {
  const { values, only } = differences;
  if (values.size === 0 && only.size === 0) return recording;
  const taken = new Set(
    [...recording.inputs, ...recording.attributes, ...recording.nodes.map(({ node }) => node)].map(({ name }) => name),
  );
  const unique = (name: string): string => {
    const free = unusedName(name, taken);
    taken.add(free);
    return free;
  };
  const nodes: FlatNode[] = [];
  const add = (hint: string, op: string, args: readonly GraphArgument[], like?: FlatNode): GraphArgument => {
    const name = unique(hint);
    const kind = args.some((arg) => typeof arg === 'object' && arg !== null && 'float' in arg) ? 'float' : 'int';
    const meta = { scalar: op === 'scalar::ite' ? kind : ('bool' as const) } as const;
    const modules = like?.node.modules;
    nodes.push({
      node: { kind: 'call', name, op, args, meta, ...(modules === undefined ? {} : { modules }) },
      regions: like?.regions ?? [],
    });
    return { ref: name };
  };
  const training = add('training', trainingOp, []);
  for (const flat of recording.nodes) {
    const { node, regions } = flat;
    if (only.has(node.name)) {
      const region: Region = { op: 'run_if', before: [training], key: 'run_if training' };
      nodes.push({ node, regions: [region, ...regions] });
      continue;
    }
    const found = values.get(node.name);
    if (found === undefined || node.kind !== 'call') {
      nodes.push(flat);
      continue;
    }
    let changed: CallNode = node;
    for (const { path: at, training: inTraining, evaluation } of found) {
      const value =
        inTraining === true
          ? training
          : inTraining === false
            ? add('not', 'scalar::not', [training], flat)
            : add('ite', 'scalar::ite', [training, inTraining, evaluation], flat);
      changed = replaceAt(changed, at, value);
    }
    nodes.push({ node: changed, regions });
  }
  return { ...recording, nodes };
}

function replaceAt(node: CallNode, [where, ...rest]: Path, value: GraphArgument): CallNode {
  if (where === 'args') return { ...node, args: put(node.args, rest, value) as readonly GraphArgument[] };
  const kwargs = put({ dict: node.kwargs ?? {} }, rest, value) as {
    readonly dict: Readonly<Record<string, GraphArgument>>;
  };
  return { ...node, kwargs: kwargs.dict };
}

function put(into: GraphArgument, at: Path, value: GraphArgument): GraphArgument {
  const [first, ...rest] = at;
  if (first === undefined) return value;
  if (isList(into)) return into.map((item, i) => (i === first ? put(item, rest, value) : item));
  if (!isDict(into)) return into;
  return { dict: { ...into.dict, [first]: put(into.dict[first] as GraphArgument, rest, value) } };
}

function isDict(value: GraphArgument): value is { readonly dict: Readonly<Record<string, GraphArgument>> } {
  return typeof value === 'object' && value !== null && 'dict' in value;
}

function isNumber(value: GraphArgument): boolean {
  return typeof value === 'number' || (typeof value === 'object' && value !== null && 'float' in value);
}

function path({ modules }: GraphNode): string {
  return (modules ?? []).map((call) => call.path).join(' ');
}
