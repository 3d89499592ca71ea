/** @file A split in numbers: per stage its layers, parameters, inputs, outputs and costs. Plain JSON. */
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { type GraphNode, placeholdersOf, type ValueMeta } from '../graph/graph.ts';
import { bytesOf, costOf, type ExampleSizes, elementsOf } from '../graph/node-cost.ts';
import { formatMeta } from '../graph/print.ts';
import { flattenRegions } from '../graph/regions.ts';
import type { StagePart } from '../split/parts.ts';
import { Pipe } from './pipe.ts';

/** A value that travels to a stage, or leaves it. */
export interface ReportedValue {
  readonly name: string;
  /** `float32[batch, 16]` */
  readonly type: string;
  readonly bytes: number;
  /** The stage that makes it; null for an input of the model. */
  readonly from: number | null;
  /** The stages that take it; none where only the model returns it. */
  readonly to: readonly number[];
}

/** One stage in numbers. */
export interface StageReport {
  readonly stage: number;
  /** The layers and modules in it, in order, neighbours joined: `layers.0-3`. */
  readonly layers: readonly string[];
  readonly parameters: { readonly count: number; readonly elements: number; readonly bytes: number };
  readonly inputs: readonly ReportedValue[];
  readonly outputs: readonly ReportedValue[];
  readonly bytesIn: number;
  readonly bytesOut: number;
  /** Multiplications and additions of the forward of a microbatch. */
  readonly flops: number;
  /** Its share of the estimated time of all stages. */
  readonly share: number;
}

/** A split in numbers. */
export interface PipeReport {
  readonly stages: readonly StageReport[];
  /** Values that travel further than to the next stage. */
  readonly skips: readonly ReportedValue[];
  /** Parameters that several stages hold. */
  readonly ties: readonly { readonly name: string; readonly stages: readonly number[] }[];
  readonly notes: readonly string[];
  /** The sizes of free dimensions that were counted with. */
  readonly sizes: Readonly<Record<string, number>>;
}

/**
 * A pipe in numbers. Free dimensions count with the sizes given, else as 8.
 *
 * @example describePipe(pipe, { batch: 16 }).stages.map((stage) => stage.share)
 */
export function describePipe(pipe: Pipe, sizes: Readonly<Record<string, number>> = {}): PipeReport {
  checkArgument('describePipe', pipe instanceof Pipe, ['the pipe', pipe], 'what pipeline() returns');
  const { root, stages } = pipe.split;
  const used = withDefaults(root.ranges ?? {}, sizes);
  const example: ExampleSizes = new Map(Object.entries(used));
  const inputMetas = new Map(placeholdersOf(root).map((node) => [node.name, node.meta ?? null]));
  const costs = stages.map((part) => costOfStage(part, example));
  const total = costs.reduce((sum, { seconds }) => sum + seconds, 0);
  const takers = new Map<string, number[]>();
  for (const { index, inputs } of stages)
    for (const { name } of inputs) takers.set(name, [...(takers.get(name) ?? []), index]);
  const value = (name: string, from: number | null, meta: ValueMeta): ReportedValue => ({
    name,
    type: formatMeta(meta),
    bytes: bytesOf(meta, example),
    from,
    to: takers.get(name) ?? [],
  });
  const reports = stages.map((part, stage): StageReport => {
    const inputs = part.inputs.map(({ name, stage: from, meta }) =>
      value(name, from, meta ?? inputMetas.get(name) ?? null),
    );
    const outputs = part.outputs.map(({ name, meta }) => value(name, stage, meta));
    const parameters = part.attributes.filter(({ role }) => role === 'parameter');
    return {
      stage,
      layers: layersOf(part),
      parameters: {
        count: parameters.length,
        elements: parameters.reduce((sum, { meta }) => sum + elementsOf(meta), 0),
        bytes: parameters.reduce((sum, { meta }) => sum + bytesOf(meta), 0),
      },
      inputs,
      outputs,
      bytesIn: inputs.reduce((sum, { bytes }) => sum + bytes, 0),
      bytesOut: outputs.reduce((sum, { bytes }) => sum + bytes, 0),
      flops: costs[stage]?.flops ?? 0,
      share: total === 0 ? 0 : (costs[stage]?.seconds ?? 0) / total,
    };
  });
  const isFar = ({ from, to }: ReportedValue): boolean => to.some((stage) => stage > (from ?? 0) + 1);
  const modelInputs = [...inputMetas].map(([name, meta]) => value(name, null, meta));
  return {
    stages: reports,
    skips: [
      ...modelInputs.filter(({ to }) => to.some((stage) => stage > 0)),
      ...reports.flatMap(({ outputs }) => outputs.filter(isFar)),
    ],
    ties: pipe.replicatedParams.map(({ name, stages: holders }) => ({ name, stages: [...holders.keys()] })),
    notes: pipe.notes,
    sizes: used,
  };
}

function withDefaults(
  ranges: Readonly<Record<string, unknown>>,
  given: Readonly<Record<string, number>>,
): Record<string, number> {
  const symbols = Object.keys(ranges).filter((text) => /^[A-Za-z_]\w*$/.test(text));
  for (const [name, size] of Object.entries(given)) {
    if (!symbols.includes(name))
      throw new PipelineError(
        'BAD_OPTION',
        `there is no dynamic size '${name}'; ${symbols.length === 0 ? 'all sizes are fixed' : `there are ${symbols.join(', ')}`}`,
      );
    if (!Number.isSafeInteger(size) || size < 1)
      throw new PipelineError('BAD_OPTION', `the size of '${name}' is ${size}; give a whole number of at least 1`);
  }
  return Object.fromEntries(symbols.map((name) => [name, given[name] ?? 8]));
}

function costOfStage({ graph }: StagePart, sizes: ExampleSizes): { readonly flops: number; readonly seconds: number } {
  const { nodes: flat, graphs } = flattenRegions(graph);
  const nodes = new Map(flat.map(({ node }) => [node.name, node]));
  let flops = 0;
  let seconds = 0;
  for (const { node } of flat) {
    const cost = costOf(node, nodes, sizes, graphs);
    flops += cost.flops;
    seconds += cost.seconds;
  }
  return { flops, seconds };
}

/** The layers and modules that the nodes of a stage came from: numbered ones of a list joined, others by name. */
function layersOf({ graph }: StagePart): string[] {
  const names: string[] = [];
  for (const { node } of flattenRegions(graph).nodes) {
    const name = layerName(node);
    if (name !== '' && !names.includes(name)) names.push(name);
  }
  const texts: (string | { list: string; first: number; last: number })[] = [];
  for (const name of names) {
    if (names.some((other) => other.startsWith(`${name}.`))) continue; // its parts are named
    const match = /^(?:(.*)\.)?(\d+)$/.exec(name);
    const before = texts.at(-1);
    const number = Number(match?.[2]);
    if (match === null) texts.push(name);
    else if (typeof before === 'object' && before.list === (match[1] ?? '') && before.last === number - 1)
      before.last = number;
    else texts.push({ list: match[1] ?? '', first: number, last: number });
  }
  return texts.map((each) => {
    if (typeof each === 'string') return each;
    const { list, first, last } = each;
    return `${list}${list === '' ? '' : '.'}${first}${first === last ? '' : `-${last}`}`;
  });
}

/** The outermost numbered module of a node, or else the innermost one. */
function layerName({ modules = [] }: GraphNode): string {
  const paths = modules.map(({ path }) => path.replace(/@\d+/g, ''));
  return paths.find((path) => /(^|\.)\d+$/.test(path)) ?? paths.at(-1) ?? '';
}
