/**
 * @file What nodes cost, estimated from shapes: arithmetic of the operators that dominate a model, memory traffic of the
 * rest. Only ratios matter for balancing; the rates are those of an ordinary accelerator.
 */
import { type DTypeName, dtypes } from '@pipewright/torch';
import { isList } from '../base/list.ts';
import { isView } from './effects.ts';
import { evaluate, parseExpression } from './expression.ts';
import type { CallNode, Dim, Graph, GraphArgument, GraphNode, TensorMeta, ValueMeta } from './graph.ts';
import { inputsOf, isReference } from './graph.ts';

/** Sizes of free dimensions to count with, by symbol. */
export type ExampleSizes = ReadonlyMap<string, number>;

/** What a node costs. */
export interface NodeCost {
  /** Multiplications and additions of the forward. */
  readonly flops: number;
  /** Bytes read and written. */
  readonly bytes: number;
  /** An estimate of the time of the forward. */
  readonly seconds: number;
}

const flopsPerSecond = 50e12;
const bytesPerSecond = 500e9;
const secondsPerCall = 1e-6;
/** The size that is assumed for a free dimension without an example. */
const usualSize = 8;
const nothing: NodeCost = { flops: 0, bytes: 0, seconds: 0 };
const noSizes: ExampleSizes = new Map();

function sizeOf(dim: Dim | undefined, sizes: ExampleSizes): number {
  if (typeof dim === 'number') return dim;
  if (dim === undefined) return 1;
  const known = sizes.get(dim);
  if (known !== undefined) return known;
  const expression = parseExpression(dim);
  if (expression === undefined) return usualSize;
  const symbols = new Map(sizes);
  for (const symbol of dim.match(/[A-Za-z_]\w*/g) ?? []) if (!symbols.has(symbol)) symbols.set(symbol, usualSize);
  return evaluate(expression, symbols) ?? usualSize;
}

function isTensorMeta(meta: ValueMeta | undefined): meta is TensorMeta {
  return meta !== undefined && meta !== null && !Array.isArray(meta) && 'shape' in meta;
}

/** Number of elements of a value. @example elementsOf({ dtype: 'float32', shape: [2, 3] }) // 6 */
export function elementsOf(meta: ValueMeta | undefined, sizes: ExampleSizes = noSizes): number {
  if (isList(meta)) return meta.reduce<number>((sum, item) => sum + elementsOf(item, sizes), 0);
  return isTensorMeta(meta) ? meta.shape.reduce<number>((product, dim) => product * sizeOf(dim, sizes), 1) : 0;
}

/** Bytes of a value. @example bytesOf({ dtype: 'float32', shape: [2, 3] }) // 24 */
export function bytesOf(meta: ValueMeta | undefined, sizes: ExampleSizes = noSizes): number {
  if (isList(meta)) return meta.reduce<number>((sum, item) => sum + bytesOf(item, sizes), 0);
  return isTensorMeta(meta) ? elementsOf(meta, sizes) * (dtypes.get(meta.dtype as DTypeName)?.itemSize ?? 1) : 0;
}

type Nodes = ReadonlyMap<string, Pick<GraphNode, 'meta'>>;

/**
 * What a node costs; `graphs` has the sub-graphs that nodes name.
 *
 * @example costOf(node, new Map(graph.nodes.map((each) => [each.name, each]))).flops
 */
export function costOf(
  node: GraphNode,
  nodes: Nodes,
  sizes: ExampleSizes = noSizes,
  graphs: Graph['graphs'] = {},
): NodeCost {
  if (node.kind !== 'call' || isFree(node.op)) return nothing;
  const bodies = node.args.flatMap((arg) => {
    const body = typeof arg === 'object' && arg !== null && 'graph' in arg ? graphs[arg.graph] : undefined;
    return body === undefined ? [] : [body];
  });
  if (bodies.length > 0) return costOfBodies(node, bodies, { rounds: roundsOf(node, nodes, sizes), sizes });
  const bytes = inputsOf(node).reduce(
    (sum, name) => sum + bytesOf(nodes.get(name)?.meta, sizes),
    bytesOf(node.meta, sizes),
  );
  const flops = flopsOf(node, nodes, sizes);
  return { flops, bytes, seconds: Math.max(flops / flopsPerSecond, bytes / bytesPerSecond) + secondsPerCall };
}

/** What a branch or loop costs: the dearer branch; of a loop as many rounds as are known, else one. */
function costOfBodies(
  node: CallNode,
  bodies: readonly Graph[],
  { rounds, sizes }: { readonly rounds: number; readonly sizes: ExampleSizes },
): NodeCost {
  const costs = bodies.map((body) => {
    const inside = new Map(body.nodes.map((each) => [each.name, each]));
    return body.nodes.map((each) => costOf(each, inside, sizes, body.graphs)).reduce(sumOf, nothing);
  });
  if (node.op === 'higher_order::cond') return costs.reduce((a, b) => (b.seconds > a.seconds ? b : a));
  const { flops, bytes, seconds } = costs.reduce(sumOf);
  return { flops: flops * rounds, bytes: bytes * rounds, seconds: seconds * rounds };
}

function sumOf(a: NodeCost, b: NodeCost): NodeCost {
  return { flops: a.flops + b.flops, bytes: a.bytes + b.bytes, seconds: a.seconds + b.seconds };
}

/** Which argument a loop goes through, slice by slice. */
const scannedArgument: ReadonlyMap<string, number> = new Map([
  ['higher_order::scan', 2],
  ['higher_order::map_impl', 1],
  ['higher_order::associative_scan', 1],
]);

function roundsOf(node: CallNode, nodes: Nodes, sizes: ExampleSizes): number {
  const scanned = node.args[scannedArgument.get(node.op) ?? -1];
  const [first] = Array.isArray(scanned) ? (scanned as readonly GraphArgument[]) : [scanned];
  if (first === undefined || !isReference(first)) return 1;
  const meta = nodes.get(first.ref)?.meta;
  return isTensorMeta(meta) ? sizeOf(meta.shape[0], sizes) : 1;
}

function isFree(op: string): boolean {
  return isView(op) || /^(aten::(_assert|sym_)|scalar::|pippy::)/.test(op);
}

function flopsOf(node: CallNode, nodes: Nodes, sizes: ExampleSizes): number {
  const metas = node.args.map((arg) => (isReference(arg) ? nodes.get(arg.ref)?.meta : undefined));
  const size = (at: number, dim: number): number => {
    const meta = metas[at];
    return isTensorMeta(meta) ? sizeOf(meta.shape.at(dim), sizes) : 1;
  };
  const out = elementsOf(node.meta, sizes);
  const base = node.op.replace(/^aten::_?/, '').replace(/\..*$/, '');
  switch (base) {
    case 'linear':
      return 2 * out * size(1, -1);
    case 'matmul':
    case 'mm':
    case 'bmm':
      return 2 * out * size(0, -1);
    case 'addmm':
    case 'baddbmm':
      return 2 * out * size(1, -1);
    case 'scaled_dot_product_attention':
      return 4 * out * size(1, -2);
    case 'convolution':
    case 'conv1d':
    case 'conv2d':
    case 'conv3d':
    case 'conv_transpose1d':
    case 'conv_transpose2d':
    case 'conv_transpose3d':
      return (2 * out * elementsOf(metas[1], sizes)) / Math.max(1, size(1, 0));
    default:
      return out;
  }
}
