/**
 * @file What operators do besides computing: which return views of an argument, which change arguments in place, which
 * draw random numbers. It follows from the schemas of the engine, which only this file reads.
 */
import { type BoundOp, bindOp } from '@pipewright/torch/internal';
import { eachReference, type GraphNode, isReference } from './graph.ts';

/** The effects of one operator. */
interface Effects {
  /** Positions of the arguments that it changes in place, and what they are called as keywords. */
  readonly written: readonly { readonly at: number; readonly key: string }[];
  /** The argument that the result is a view of, or may be; -1 where there is none. */
  readonly viewOf: number;
  readonly random: boolean;
}

const none: Effects = { written: [], viewOf: -1, random: false };
const known = new Map<string, Effects>();

function effectsOf(op: string): Effects {
  let effects = known.get(op);
  if (effects === undefined) {
    effects = op.startsWith('aten::') ? readEffects(op) : none;
    known.set(op, effects);
  }
  return effects;
}

function readEffects(op: string): Effects {
  let bound: BoundOp;
  try {
    bound = bindOp(op);
  } catch {
    return none; // an operator of another version of libtorch: compiling will name it
  }
  const { args, random } = bound;
  const written = args.flatMap(({ written, key }, at) => (written ? [{ at, key }] : []));
  // `_unsafe_view` is a view that its schema keeps quiet about: autograd takes it for a tensor of its own.
  const aliased = args.findIndex((arg) => arg.aliased && !arg.written);
  return { written, viewOf: op === 'aten::_unsafe_view' ? 0 : aliased, random };
}

/** The argument that an operator's result is a view of, or may be, by position; -1 for none. @example viewedArgument('aten::t') // 0 */
export function viewedArgument(op: string): number {
  return effectsOf(op).viewOf;
}

/** Whether an operator returns a view, or may. @example isView('aten::reshape') // true */
export function isView(op: string): boolean {
  return viewedArgument(op) >= 0;
}

const perhaps = /^aten::(reshape|reshape_as|flatten|ravel|contiguous|to|type_as)(\.|$)/;

/** Whether an operator returns a view where it can, and a copy where it cannot. @example mayCopy('aten::reshape') // true */
export function mayCopy(op: string): boolean {
  return perhaps.test(op);
}

/** Whether an operator draws random numbers, in some mode at least. @example isRandom('aten::dropout') // true */
export function isRandom(op: string): boolean {
  return effectsOf(op).random;
}

/** The names of the nodes whose tensors a node changes in place. */
export function changedBy(node: GraphNode): string[] {
  if (node.kind !== 'call') return [];
  return effectsOf(node.op).written.flatMap(({ at, key }) => {
    const value = at < node.args.length ? node.args[at] : node.kwargs?.[key];
    const names: string[] = [];
    if (value !== undefined) eachReference(value, (name) => names.push(name));
    return names;
  });
}

/** The nodes of a graph by name. */
type Nodes = ReadonlyMap<string, GraphNode>;

/** The node that a node is a view of, or may be; null for none. */
export function viewedBy(node: GraphNode, nodes: Nodes): string | null {
  if (node.kind === 'element') {
    const list = nodes.get(node.of.ref);
    return list === undefined ? null : viewedBy(list, nodes);
  }
  if (node.kind !== 'call' || changedBy(node).length > 0) return null;
  const value = node.args[viewedArgument(node.op)];
  return isReference(value) ? value.ref : null;
}

/** The tensor whose memory a value lies in: the value itself, unless it is a view or the result of a change in place. */
export function memoryOf(name: string, nodes: Nodes): string {
  for (let at = name; ; ) {
    const node = nodes.get(at);
    const next = node === undefined ? null : (changedBy(node)[0] ?? viewedBy(node, nodes));
    if (next === null) return at;
    at = next;
  }
}
