/**
 * @file Changes in place across stages. A stage that changes a tensor made by an earlier one works on a copy of its own,
 * and makes the views of it that it uses again: what arrives from another stage are separate tensors, and one that needs
 * a gradient must not be changed.
 */
import { bindOp } from '@pipewright/torch';
import { PipelineError } from '../errors.ts';
import { type CallNode, eachReference, type GraphNode, inputsOf, isReference, mapNodeReferences } from './graph.ts';
import type { FlatNode } from './split-regions.ts';

interface Schema {
  readonly written: readonly number[];
  /** The argument that the result is a view of, or -1. */
  readonly viewOf: number;
}

const schemas = new Map<string, Schema>();

/** What an operator does to its arguments. */
function schemaOf(op: string): Schema {
  let schema = schemas.get(op);
  if (schema === undefined) {
    schema = op.startsWith('aten::') ? readSchema(op) : { written: [], viewOf: -1 };
    schemas.set(op, schema);
  }
  return schema;
}

function readSchema(op: string): Schema {
  const { args } = bindOp(op);
  return {
    written: args.flatMap((arg, i) => (arg.written ? [i] : [])),
    viewOf: args.findIndex((arg) => arg.aliased && !arg.written),
  };
}

/** The names of the nodes whose tensors a node changes in place. */
export function changedBy(node: GraphNode): string[] {
  if (node.kind !== 'call') return [];
  const { written } = schemaOf(node.op);
  if (written.length === 0) return [];
  const { args } = bindOp(node.op);
  return written.flatMap((at) => {
    const value = at < node.args.length ? node.args[at] : node.kwargs?.[args[at]?.key ?? ''];
    const names: string[] = [];
    if (value !== undefined) eachReference(value, (name) => names.push(name));
    return names;
  });
}

/** The node that a node is a view of, or null. */
function parentOf(node: GraphNode, nodes: ReadonlyMap<string, GraphNode>): string | null {
  if (node.kind === 'element') {
    const list = nodes.get(node.of.ref);
    return list === undefined ? null : parentOf(list, nodes);
  }
  if (node.kind !== 'call') return null;
  const changed = changedBy(node);
  if (changed.length > 0) return changed[0] as string;
  const at = schemaOf(node.op).viewOf;
  const value = at < 0 ? undefined : node.args[at];
  return isReference(value) ? value.ref : null;
}

/** The tensor whose memory a value lies in: the value itself, unless it is a view. */
export function memoryOf(name: string, nodes: ReadonlyMap<string, GraphNode>): string {
  let at = name;
  for (;;) {
    const node = nodes.get(at);
    const parent = node === undefined ? null : parentOf(node, nodes);
    if (parent === null) return at;
    at = parent;
  }
}

/** Where a node is: the stage of every value. */
export interface Places {
  readonly nodes: ReadonlyMap<string, GraphNode>;
  /** The stage that a value is made in; inputs of the model and attributes are in none. */
  readonly stageOf: (name: string) => number | null;
}

/** The nodes of a stage with changes in place made safe. */
export function ownChangedTensors(body: readonly FlatNode[], stage: number, places: Places): FlatNode[] {
  const { nodes, stageOf } = places;
  const isForeign = (name: string): boolean => {
    const kind = nodes.get(name)?.kind;
    if (kind === 'placeholder') return stage > 0;
    return kind !== 'attribute' && stageOf(name) !== stage;
  };
  const changed = new Set<string>();
  for (const { node } of body)
    for (const name of changedBy(node)) {
      const memory = memoryOf(name, nodes);
      if (isForeign(memory)) changed.add(memory);
    }
  if (changed.size === 0) return [...body];
  const own = new Map<string, string>();
  const made: FlatNode[] = [];
  const taken = new Set(nodes.keys());
  const copyOf = (name: string): string => {
    const known = own.get(name);
    if (known !== undefined) return known;
    const node = nodes.get(name) as GraphNode;
    if (changed.has(name)) {
      const copy = unused(`${name}_own`, taken);
      const clone: CallNode = { kind: 'call', name: copy, op: 'aten::clone', args: [{ ref: name }] };
      made.push({ node: node.meta === undefined ? clone : { ...clone, meta: node.meta }, regions: [] });
      own.set(name, copy);
      return copy;
    }
    // A view of it: made again from the copy, under its own name.
    own.set(name, name);
    const inputs = new Map(inputsOf(node).map((input) => [input, isPart(input) ? copyOf(input) : input]));
    made.push({ node: mapNodeReferences(node, ({ ref }) => ({ ref: inputs.get(ref) ?? ref })), regions: [] });
    return name;
  };
  const isPart = (name: string): boolean => isForeign(name) && changed.has(memoryOf(name, nodes)) && isTensor(name);
  const isTensor = (name: string): boolean => {
    const meta = nodes.get(name)?.meta ?? null;
    return meta === null || !('scalar' in meta);
  };
  const rest = body.map(({ node, regions }): FlatNode => {
    const replaced = new Map(inputsOf(node).map((name) => [name, isPart(name) ? copyOf(name) : name]));
    return { node: mapNodeReferences(node, ({ ref }) => ({ ref: replaced.get(ref) ?? ref })), regions };
  });
  return [...made, ...rest];
}

/** Refuses buffers that are changed in place while several stages hold a copy of their own. */
export function refuseSharedChanges(
  bodies: readonly (readonly FlatNode[])[],
  nodes: ReadonlyMap<string, GraphNode>,
): void {
  const users = new Map<string, Set<number>>();
  const changers = new Map<string, number>();
  bodies.forEach((body, stage) => {
    for (const { node } of body) {
      for (const name of inputsOf(node)) {
        const found = nodes.get(name);
        if (found?.kind === 'attribute')
          users.set(found.target, (users.get(found.target) ?? new Set<number>()).add(stage));
      }
      for (const name of changedBy(node)) {
        const memory = nodes.get(memoryOf(name, nodes));
        if (memory?.kind !== 'attribute') continue;
        changers.set(memory.target, stage);
        users.set(memory.target, (users.get(memory.target) ?? new Set<number>()).add(stage));
      }
    }
  });
  for (const [target, stage] of changers) {
    const all = [...(users.get(target) ?? [])];
    if (all.length < 2) continue;
    throw new PipelineError(
      'SHARED_CHANGE',
      `split: stage ${stage} changes ${target} in place, and stages ${all.join(', ')} use it, each with a copy of its own; cut so that one stage has all uses of it`,
      { target, stages: all },
    );
  }
}

function unused(name: string, taken: Set<string>): string {
  let free = name;
  for (let i = 1; taken.has(free); i++) free = `${name}_${i}`;
  taken.add(free);
  return free;
}
