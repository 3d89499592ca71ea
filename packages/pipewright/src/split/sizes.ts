/**
 * @file Sizes across stages: a number that an earlier stage read from a tensor's shape is read again from a tensor that
 * arrives, if one has that size. Only numbers that cannot be read that way are sent.
 */
import { type CallNode, type GraphNode, inputsOf, isReference, type TensorMeta } from '../graph/graph.ts';
import type { FlatNode } from '../graph/regions.ts';

/** The operator that reads one size of a tensor. */
const sizeOp = 'aten::sym_size.int';

/** The expression of a number, where it is known. */
function expressionOf(node: GraphNode | undefined): string | null {
  const meta = node?.meta ?? null;
  return meta !== null && 'scalar' in meta && meta.scalar === 'int' && meta.value !== undefined
    ? String(meta.value)
    : null;
}

function isNumber(node: GraphNode | undefined): boolean {
  const meta = node?.meta ?? null;
  return meta !== null && 'scalar' in meta;
}

/**
 * Nodes by stage, with sizes of tensors that a stage uses for nothing else read in the stage that has them: a number
 * travels better than a tensor.
 */
export function readSizesAtHome(
  bodies: readonly (readonly FlatNode[])[],
  homeOf: (tensor: string) => number | null,
): { readonly bodies: FlatNode[][]; readonly moved: ReadonlyMap<string, number> } {
  const moved = new Map<string, number>();
  const arriving = new Map<number, Map<string, FlatNode>>();
  const rest = bodies.map((body, stage) => {
    const made = new Set(body.map(({ node }) => node.name));
    const used = new Set(body.flatMap(({ node }) => (isSize(node) ? [] : inputsOf(node))));
    return body.filter((flat) => {
      const [tensor = ''] = isSize(flat.node) ? inputsOf(flat.node) : [];
      const home = tensor === '' || made.has(tensor) || used.has(tensor) ? null : homeOf(tensor);
      if (home === null || home === stage) return true;
      moved.set(flat.node.name, home);
      arriving.set(
        home,
        (arriving.get(home) ?? new Map<string, FlatNode>()).set(flat.node.name, { node: flat.node, regions: [] }),
      );
      return false;
    });
  });
  const joined = rest.map((body, stage) => {
    const there = new Set(body.map(({ node }) => node.name));
    return [...body, ...[...(arriving.get(stage) ?? [])].flatMap(([name, flat]) => (there.has(name) ? [] : [flat]))];
  });
  return { bodies: joined, moved };
}

/** Whether a node reads one size of a tensor. */
export function isSize(node: GraphNode): boolean {
  return node.kind === 'call' && node.op === sizeOp;
}

/** The nodes of a stage with sizes of earlier stages read from tensors that arrive. `foreign` are the values that arrive. */
export function ownSizes(
  body: readonly FlatNode[],
  foreign: readonly string[],
  nodes: ReadonlyMap<string, GraphNode>,
): FlatNode[] {
  const numbers = foreign.filter((name) => isNumber(nodes.get(name)));
  if (numbers.length === 0) return [...body];
  const tensors = foreign.flatMap((name) => {
    const meta = nodes.get(name)?.meta ?? null;
    return meta !== null && 'shape' in meta ? [{ name, shape: (meta as TensorMeta).shape }] : [];
  });
  const own = new Map<string, string | null>();
  const made: FlatNode[] = [];
  const find = (name: string): string | null => {
    const known = own.get(name);
    if (known !== undefined) return known;
    own.set(name, null); // while it is being looked for
    const found = findOut(name);
    own.set(name, found);
    return found;
  };
  const findOut = (name: string): string | null => {
    const node = nodes.get(name);
    const expression = expressionOf(node);
    if (node?.kind !== 'call' || expression === null) return null;
    for (const { name: tensor, shape } of tensors) {
      const dim = shape.findIndex((size) => String(size) === expression);
      if (dim < 0) continue;
      const read: CallNode = { ...node, op: sizeOp, args: [{ ref: tensor }, dim] };
      made.push({ node: read, regions: [] });
      return name;
    }
    if (!node.op.startsWith('scalar::') || !node.args.every((arg) => !isReference(arg) || find(arg.ref) !== null))
      return null;
    made.push({ node, regions: [] });
    return name;
  };
  const found = new Set(numbers.filter((name) => find(name) !== null));
  if (found.size === 0) return [...body];
  const wanted = new Set<string>();
  for (const { node } of body) for (const name of inputsOf(node)) wanted.add(name);
  for (const { node } of made.toReversed())
    if (wanted.has(node.name)) for (const name of inputsOf(node)) wanted.add(name);
  const names = new Set(body.map(({ node }) => node.name));
  const front = made.filter(({ node }) => wanted.has(node.name) && !names.has(node.name));
  return [...front, ...body];
}
