/** @file A graph as text: one line a node, with what is known of its value and the module it came from. */
import { checkArgument } from '../base/checks.ts';
import { isList } from '../base/list.ts';
import type { Graph, GraphArgument, GraphNode, ValueMeta } from './graph.ts';
import { placeholdersOf } from './graph.ts';

/**
 * The graph as text.
 *
 * @example console.log(formatGraph(graph)) // graph(%x: float32[s0, 4]) ...
 */
export function formatGraph(graph: Graph): string {
  return lines(graph, 'graph', '').join('\n');
}

function lines(graph: Graph, name: string, indent: string): string[] {
  const inputs = placeholdersOf(graph).map((node) => `%${node.name}${typed(node.meta)}`);
  const ranges = Object.entries(graph.ranges ?? {}).map(
    ([symbol, { min, max }]) => `${min ?? '-inf'} <= ${symbol} <= ${max ?? 'inf'}`,
  );
  const head = `${indent}${name}(${inputs.join(', ')})${ranges.length === 0 ? '' : ` where ${ranges.join(', ')}`}`;
  const body = graph.nodes.filter((node) => node.kind !== 'placeholder').map((node) => `${indent}  ${line(node)}`);
  const inner = Object.entries(graph.graphs ?? {}).flatMap(([key, sub]) => lines(sub, `graph ${key}`, `${indent}  `));
  return [head, ...body, ...inner];
}

function line(node: GraphNode): string {
  if (node.kind === 'output') return `return ${formatArgument(node.value)}`;
  const from = node.modules?.at(-1)?.path ?? '';
  return `%${node.name}${typed(node.meta)} = ${action(node)}${from === '' ? '' : `  # ${from}`}`;
}

function action(node: Exclude<GraphNode, { kind: 'output' }>): string {
  switch (node.kind) {
    case 'placeholder':
      return 'placeholder';
    case 'attribute':
      return `${node.role} ${node.target}`;
    case 'call':
      return `${node.op}(${formatArguments(node)})`;
    case 'module':
      return `module ${node.target}(${formatArguments(node)})`;
    case 'element':
      return `%${node.of.ref}[${node.index}]`;
  }
}

function formatArguments(node: {
  readonly args: readonly GraphArgument[];
  readonly kwargs?: Readonly<Record<string, GraphArgument>>;
}): string {
  const named = Object.entries(node.kwargs ?? {}).map(([key, value]) => `${key}=${formatArgument(value)}`);
  return [...node.args.map(formatArgument), ...named].join(', ');
}

/** One argument as text. @example formatArgument([{ ref: 'x' }, { float: 2 }, null]) // '[%x, 2.0, null]' */
export function formatArgument(value: GraphArgument): string {
  if (value === null || typeof value === 'boolean' || typeof value === 'number') return String(value);
  if (typeof value === 'string') return JSON.stringify(value);
  if (isList(value)) return `[${value.map(formatArgument).join(', ')}]`;
  checkArgument('formatArgument', typeof value === 'object', ['the argument', value], 'an argument of a graph');
  if ('ref' in value) return `%${value.ref}`;
  if ('float' in value) return Number.isInteger(value.float) ? (value.float as number).toFixed(1) : String(value.float);
  if ('int' in value) return value.int;
  if ('complex' in value) return `(${value.complex[0]} + ${value.complex[1]}i)`;
  if ('dict' in value)
    return `{${Object.entries(value.dict)
      .map(([key, item]) => `${key}: ${formatArgument(item)}`)
      .join(', ')}}`;
  if ('graph' in value) return `graph ${value.graph}`;
  return String(Object.values(value)[0]);
}

function typed(meta: ValueMeta | undefined): string {
  const text = formatMeta(meta);
  return text === '' ? '' : `: ${text}`;
}

/** What is known of a value as text; nothing when nothing is. @example formatMeta({ dtype: 'float32', shape: ['s0', 4] }) // 'float32[s0, 4]' */
export function formatMeta(meta: ValueMeta | undefined): string {
  if (typeof meta !== 'object' || meta === null) return '';
  if (isList(meta)) return `(${meta.map((item) => formatMeta(item) || '?').join(', ')})`;
  if ('scalar' in meta) return meta.value === undefined ? meta.scalar : `${meta.scalar} ${meta.value}`;
  return 'dtype' in meta && Array.isArray(meta.shape) ? `${meta.dtype}[${meta.shape.join(', ')}]` : '';
}
