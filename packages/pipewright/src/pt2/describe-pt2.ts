/** @file What is in a `.pt2` file, without loading its weights: inputs, dynamic sizes, operators, parameters, memory. */
import { nn } from '@pipewright/torch';
import { checkArgument, checkOptions } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { compileGraph } from '../execute/compile.ts';
import type { DimRange, Graph, GraphArgument, ValueMeta } from '../graph/graph.ts';
import { eachReference, outputOf, placeholdersOf } from '../graph/graph.ts';
import { formatMeta } from '../graph/print.ts';
import { type ValueMemory, valueMemory } from '../graph/value-memory.ts';
import { Pt2Archive } from './archive.ts';
import { readProgram } from './read-program.ts';
import { readTable, type StoredTensor } from './stored-tensors.ts';

/** An input or output. */
export interface Pt2Value {
  readonly name: string;
  /** `float32[s0, 16]` */
  readonly type: string;
}

/** Tensors of one kind. */
export interface Pt2Tensors {
  readonly count: number;
  readonly elements: number;
  readonly bytes: number;
}

/** One stored tensor. */
export interface Pt2Tensor {
  readonly name: string;
  readonly kind: 'parameter' | 'buffer' | 'constant';
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
  /** The first name of the same tensor, where it has several. */
  readonly sameAs?: string;
}

/** What a `.pt2` file holds. */
export interface Pt2Description {
  readonly path: string;
  readonly bytes: number;
  readonly model: string;
  readonly torchVersion: string;
  readonly schemaVersion: string;
  readonly dialects: readonly string[];
  readonly inputs: readonly Pt2Value[];
  readonly outputs: readonly Pt2Value[];
  /** Ranges of dynamic sizes by symbol or expression. */
  readonly dynamicDims: Readonly<Record<string, DimRange>>;
  readonly operators: readonly { readonly op: string; readonly count: number }[];
  /** What stands in the way of running it, if anything. */
  readonly problems: readonly string[];
  readonly parameters: Pt2Tensors;
  readonly buffers: Pt2Tensors;
  readonly constants: Pt2Tensors;
  readonly tensors: readonly Pt2Tensor[];
  /** Memory of the values in between, with `sizes` for the symbols. */
  readonly memory: ValueMemory & { readonly sizes: Readonly<Record<string, number>> };
  readonly graph: Graph;
}

/** What to describe. */
export interface DescribePt2Options {
  /** Which model of the file. Default: the one called `model`, or the only one. */
  readonly model?: string | undefined;
  /** Sizes for symbols, for the memory. Default: 1, or the smallest that is allowed. */
  readonly sizes?: Readonly<Record<string, number>> | undefined;
}

/**
 * Describes a `.pt2` file without reading its weights.
 *
 * @example describePt2('model.pt2').inputs // [{ name: 'x', type: 'float32[s0, 16]' }]
 */
export function describePt2(path: string, options: DescribePt2Options = {}): Pt2Description {
  const isPath = typeof path === 'string' && path !== '';
  checkArgument('describePt2', isPath, ['the path', path], 'the path of a .pt2 file');
  checkOptions('describePt2', options, ['model', 'sizes']);
  using archive = Pt2Archive.open(path, options.model);
  const { graph, tensors: wanted, ...versions } = readProgram(archive.program());
  const kinds = new Map(
    wanted.map(({ target, role, persistent }) => [target, persistent ? role : ('constant' as const)]),
  );
  const stored = [...readTable(archive, 'weights').values(), ...readTable(archive, 'constants').values()].filter(
    (item): item is StoredTensor => !('problem' in item),
  );
  const tensors = describeTensors(stored, kinds);
  const sizes = chooseSizes(graph, options.sizes ?? {});
  return {
    path,
    bytes: archive.zip.size,
    model: archive.model,
    ...versions,
    inputs: placeholdersOf(graph).map(({ name, meta }) => ({ name, type: formatMeta(meta) })),
    outputs: outputs(graph),
    dynamicDims: graph.ranges ?? {},
    operators: countOperators(graph),
    problems: problemsOf(graph),
    parameters: sum(tensors, 'parameter'),
    buffers: sum(tensors, 'buffer'),
    constants: sum(tensors, 'constant'),
    tensors,
    memory: { ...valueMemory(graph, new Map(Object.entries(sizes))), sizes },
    graph,
  };
}

function outputs(graph: Graph): Pt2Value[] {
  const metas = new Map<string, ValueMeta | undefined>(graph.nodes.map((node) => [node.name, node.meta]));
  const found: Pt2Value[] = [];
  const visit = (value: GraphArgument): void =>
    eachReference(value, (name) => found.push({ name, type: formatMeta(metas.get(name)) }));
  visit(outputOf(graph).value);
  return found;
}

function countOperators(graph: Graph): { op: string; count: number }[] {
  const counts = new Map<string, number>();
  const walk = (part: Graph): void => {
    for (const node of part.nodes) if (node.kind === 'call') counts.set(node.op, (counts.get(node.op) ?? 0) + 1);
    for (const inner of Object.values(part.graphs ?? {})) walk(inner);
  };
  walk(graph);
  return [...counts].map(([op, count]) => ({ op, count })).sort((a, b) => b.count - a.count || (a.op < b.op ? -1 : 1));
}

function problemsOf(graph: Graph): readonly string[] {
  try {
    compileGraph(graph, {
      attribute: () => 0,
      module: () => new nn.Identity(),
      device: (device) => device,
      training: () => false,
    }).dispose();
    return [];
  } catch (error) {
    if (!(error instanceof PipelineError) || error.code !== 'GRAPH_COMPILE') throw error;
    return error.details['problems'] as string[];
  }
}

function describeTensors(stored: readonly StoredTensor[], kinds: ReadonlyMap<string, Pt2Tensor['kind']>): Pt2Tensor[] {
  const first = new Map<string, string>();
  return stored.map(({ name, entry, dtype, shape, stride, storageOffset, isParameter }) => {
    const key = JSON.stringify([entry.name, shape, stride, storageOffset]);
    const before = first.get(key);
    if (before === undefined) first.set(key, name);
    return {
      name,
      kind: kinds.get(name) ?? (isParameter ? 'parameter' : 'buffer'),
      dtype: dtype.name,
      shape,
      bytes: shape.reduce((product, size) => product * size, dtype.itemSize),
      ...(before === undefined ? {} : { sameAs: before }),
    };
  });
}

/** Count, elements and bytes of the tensors of a kind; shared ones once. */
function sum(tensors: readonly Pt2Tensor[], kind: Pt2Tensor['kind']): Pt2Tensors {
  const own = tensors.filter((tensor) => tensor.kind === kind && tensor.sameAs === undefined);
  return {
    count: own.length,
    elements: own.reduce((total, { shape }) => total + shape.reduce((product, size) => product * size, 1), 0),
    bytes: own.reduce((total, { bytes }) => total + bytes, 0),
  };
}

function chooseSizes(graph: Graph, given: Readonly<Record<string, number>>): Record<string, number> {
  const symbols = Object.keys(graph.ranges ?? {}).filter((name) => /^[A-Za-z_]\w*$/.test(name));
  for (const [name, size] of Object.entries(given)) {
    if (!symbols.includes(name))
      throw new PipelineError(
        'UNKNOWN_SIZE',
        `there is no dynamic size '${name}'; ${symbols.length === 0 ? 'all sizes are fixed' : `there are ${symbols.join(', ')}`}`,
      );
    if (!Number.isSafeInteger(size) || size < 0)
      throw new PipelineError('UNKNOWN_SIZE', `the size of '${name}' is a whole number, got ${size}`);
  }
  return Object.fromEntries(
    symbols.map((name) => {
      const min = graph.ranges?.[name]?.min ?? 1;
      return [name, given[name] ?? Math.max(1, min <= 2 ? 1 : min)];
    }),
  );
}
