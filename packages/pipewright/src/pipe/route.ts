/**
 * @file The graphs that stages run with between ranks. Only stage 0 gets the model's inputs, so it passes on those that later
 * stages need. The last stage returns the model's result, so values of it that other stages make are sent there. All other stages
 * stay as they were split.
 */
import {
  type Graph,
  type GraphArgument,
  type GraphNode,
  inputsOf,
  mapReferences,
  outputOf,
  placeholdersOf,
} from '../graph/graph.ts';
import { checkGraph } from '../graph/validate.ts';
import type { SplitGraph, StagePart } from '../split/parts.ts';

/** Where one input of a stage comes from: another stage, and which of its outputs; null where it has only one. */
export interface RoutedInput {
  readonly stage: number;
  readonly output: number | null;
}

/** One stage as it runs. */
export interface RoutedStage {
  readonly graph: Graph;
  /** Empty for stage 0, which gets the model's inputs. */
  readonly inputs: readonly RoutedInput[];
  /** Names of the values it gives, in order. */
  readonly outputs: readonly string[];
}

/** What each stage takes from others, by value name, and what it gives. */
interface Wishes {
  readonly takes: string[];
  readonly gives: string[];
}

/** The graphs and connections of all stages. */
export function routeStages(split: SplitGraph): RoutedStage[] {
  const { root, stages } = split;
  const last = stages.length - 1;
  if (last === 0) return [{ graph: wholeModel(split), inputs: [], outputs: [] }];
  const modelInputs = placeholdersOf(root).map(({ name }) => name);
  const makers = new Map<string, number>(modelInputs.map((name) => [name, 0]));
  for (const { index, outputs } of stages) for (const { name } of outputs) makers.set(name, index);
  const wishes = stages.map(
    ({ index, inputs }): Wishes => ({ takes: index === 0 ? [] : inputs.map(({ name }) => name), gives: [] }),
  );
  const end = wishes[last]!;
  // Values that the last stage computes again itself, such as sizes, are not sent there.
  const own = new Set(body(stages[last]!).map(({ name }) => name));
  for (const name of returnedValues(split))
    if (makers.get(name) !== last && !own.has(name) && !end.takes.includes(name)) end.takes.push(name);
  wishes.forEach(({ takes }, stage) => {
    // A stage that needs nothing still waits for the one before it.
    if (stage > 0 && takes.length === 0) takes.push(stages[stage - 1]!.outputs[0]?.name ?? modelInputs[0]!);
    for (const name of takes) {
      const { gives } = wishes[makers.get(name)!]!;
      if (!gives.includes(name)) gives.push(name);
    }
  });
  // The outputs of a stage keep the order of the split; those that it only passes on come last.
  const gives = stages.map(({ index, outputs }) => {
    const wanted = wishes[index]!.gives;
    const own = outputs.map(({ name }) => name).filter((name) => wanted.includes(name));
    return [...own, ...wanted.filter((name) => !own.includes(name))];
  });
  return stages.map((part, stage) => {
    const { takes } = wishes[stage]!;
    const inputs = takes.map((name): RoutedInput => {
      const maker = makers.get(name)!;
      const list = gives[maker]!;
      return { stage: maker, output: list.length === 1 ? null : list.indexOf(name) };
    });
    const graph =
      stage === 0
        ? firstGraph(split, gives[0]!)
        : stage === last
          ? lastGraph(split, takes)
          : withInputs(part, takes, { given: gives[stage]!, split });
    checkGraph(graph, `stage ${stage}`);
    return { graph, inputs, outputs: stage === last ? [] : gives[stage]! };
  });
}

/** The values of stages (and model inputs) that the model returns. */
function returnedValues(split: SplitGraph): string[] {
  const names = valueNames(split);
  return inputsOf(outputOf(split.root)).map((name) => names.get(name)!);
}

/** The value that each node of the root graph is. */
function valueNames({ root, stages }: SplitGraph): Map<string, string> {
  const names = new Map<string, string>();
  const byName = new Map(stages.map((part) => [part.name, part]));
  for (const node of root.nodes) {
    if (node.kind === 'placeholder') names.set(node.name, node.name);
    else if (node.kind === 'element') names.set(node.name, byName.get(node.of.ref)!.outputs[node.index]!.name);
    else if (node.kind === 'module') {
      const { outputs } = byName.get(node.name)!;
      if (outputs.length === 1) names.set(node.name, outputs[0]!.name);
    }
  }
  return names;
}

/** What the output of a stage's graph refers to for each of its values. */
function outputRefs({ graph, outputs }: StagePart): Map<string, GraphArgument> {
  const { value } = outputOf(graph);
  const list = outputs.length === 1 ? [value] : (value as readonly GraphArgument[]);
  return new Map(outputs.map(({ name }, i) => [name, list[i] as GraphArgument]));
}

function body({ graph }: StagePart): GraphNode[] {
  return graph.nodes.filter((node) => node.kind !== 'placeholder' && node.kind !== 'output');
}

function listOf(refs: readonly GraphArgument[]): GraphArgument {
  return refs.length === 1 ? (refs[0] as GraphArgument) : refs;
}

/** Stage 0 with all of the model's inputs, called as the model is. */
function firstGraph({ root, stages }: SplitGraph, given: readonly string[]): Graph {
  const part = stages[0]!;
  const refs = outputRefs(part);
  const nodes: GraphNode[] = [
    ...placeholdersOf(root),
    ...body(part),
    { ...outputOf(part.graph), value: listOf(given.map((name) => refs.get(name) ?? { ref: name })) },
  ];
  return { ...part.graph, nodes, ...(root.signature === undefined ? {} : { signature: root.signature }) };
}

/** The last stage with everything that the model returns. */
function lastGraph(split: SplitGraph, takes: readonly string[]): Graph {
  const part = split.stages.at(-1)!;
  const refs = outputRefs(part);
  const names = valueNames(split);
  const { value } = outputOf(split.root);
  return withOutput(part, takes, {
    split,
    value: mapReferences(value, ({ ref }) => {
      const name = names.get(ref)!;
      return refs.get(name) ?? { ref: name };
    }),
  });
}

function withInputs(
  part: StagePart,
  takes: readonly string[],
  { given, split }: { readonly given: readonly string[]; readonly split: SplitGraph },
): Graph {
  const refs = outputRefs(part);
  return withOutput(part, takes, { split, value: listOf(given.map((name) => refs.get(name) as GraphArgument)) });
}

function withOutput(
  part: StagePart,
  takes: readonly string[],
  { split, value }: { readonly split: SplitGraph; readonly value: GraphArgument },
): Graph {
  const known = new Map<string, GraphNode>(placeholdersOf(part.graph).map((node) => [node.name, node]));
  const metas = new Map(split.stages.flatMap(({ outputs }) => outputs).map(({ name, meta }) => [name, meta]));
  for (const node of placeholdersOf(split.root)) metas.set(node.name, node.meta ?? null);
  const inputs = takes.map((name): GraphNode => {
    const meta = metas.get(name) ?? null;
    return known.get(name) ?? { kind: 'placeholder', name, ...(meta === null ? {} : { meta }) };
  });
  return { ...part.graph, nodes: [...inputs, ...body(part), { ...outputOf(part.graph), value }] };
}

/** A model of one stage, with the inputs and the result of the model itself. */
function wholeModel(split: SplitGraph): Graph {
  const part = split.stages[0]!;
  const refs = outputRefs(part);
  const names = valueNames(split);
  const { value } = outputOf(split.root);
  const output = mapReferences(value, ({ ref }) => refs.get(names.get(ref)!) ?? { ref });
  const { signature } = split.root;
  return {
    ...part.graph,
    nodes: [...placeholdersOf(split.root), ...body(part), { ...outputOf(part.graph), value: output }],
    ...(signature === undefined ? {} : { signature }),
  };
}
