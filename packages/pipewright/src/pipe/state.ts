/** @file Which tensors each stage holds, and which of them are the same parameter held by several. */
import { nn, noGrad, scope, type Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import type { GraphNode } from '../graph/graph.ts';
import type { GraphState } from '../graph/graph-program.ts';
import type { SplitGraph, StagePart } from '../split/parts.ts';

/** Finds one name for tensors that have several. */
export class TensorNames {
  private readonly canonical = new Map<string, string>();
  private readonly names = new Map<string, string[]>();

  constructor(state: GraphState) {
    const first = new Map<Tensor, string>();
    for (const [name, tensor] of state) {
      const known = first.get(tensor) ?? name;
      first.set(tensor, known);
      this.canonical.set(name, known);
      this.names.set(known, [...(this.names.get(known) ?? []), name]);
    }
  }

  /** The first name of the tensor that is called so. */
  readonly first = (name: string): string => this.canonical.get(name) ?? name;

  /** All names of the tensor that is called so. */
  all(name: string): readonly string[] {
    return this.names.get(this.first(name)) ?? [name];
  }
}

/** A parameter that several stages hold: its first name, and what each stage calls it. */
export interface ReplicatedParameter {
  readonly name: string;
  /** The stage that holds the model's own tensor; the others hold copies. */
  readonly owner: number;
  /** Its names in the stages, by stage. */
  readonly stages: ReadonlyMap<number, readonly string[]>;
}

/** The parameters that several stages hold a copy of. */
export function replicatedParameters({ stages, owners }: SplitGraph, names: TensorNames): ReplicatedParameter[] {
  const holders = new Map<string, Map<number, string[]>>();
  for (const { index, attributes } of stages)
    for (const { target, role } of attributes) {
      if (role !== 'parameter') continue;
      const first = names.first(target);
      const found = holders.get(first) ?? new Map<number, string[]>();
      found.set(index, [...(found.get(index) ?? []), target]);
      holders.set(first, found);
    }
  return [...holders]
    .filter(([, found]) => found.size > 1)
    .map(([name, found]) => ({ name, owner: owners.get(name) ?? Math.min(...found.keys()), stages: found }));
}

/**
 * The tensors of a stage by name. The owner of a parameter has the original, other stages that use it a copy. A tensor of
 * several names has those whose module is in the stage.
 */
export function stageState(part: StagePart, state: GraphState, context: StateContext): Map<string, Tensor> {
  const { names, replicated, copies } = context;
  const modules = new Set(modulePaths(part.graph.nodes));
  const found = new Map<string, Tensor>();
  for (const { target } of part.attributes) {
    const tensor = state.get(target);
    if (tensor === undefined)
      throw new PipelineError(
        'GRAPH_STATE',
        `Pipe: the graph reads ${target}, which the program's state does not have`,
      );
    const first = names.first(target);
    const shared = replicated.find(({ name }) => name === first);
    const own = shared === undefined || shared.owner === part.index ? tensor : copyOf(first, part.index);
    found.set(target, own);
    for (const name of names.all(target))
      if (modules.has(name.slice(0, Math.max(0, name.lastIndexOf('.')))) && name.includes('.')) found.set(name, own);
  }
  return found;

  function copyOf(first: string, stage: number): Tensor {
    const key = `${stage} ${first}`;
    let copy = copies.get(key);
    if (copy === undefined) {
      const original = state.get(first)!;
      copy = noGrad(() => scope(() => new nn.Parameter(original.clone(), { requiresGrad: original.requiresGrad })));
      copies.set(key, copy);
    }
    return copy;
  }
}

/** What the states of all stages share. */
export interface StateContext {
  readonly names: TensorNames;
  readonly replicated: readonly ReplicatedParameter[];
  /** Copies of replicated parameters, by stage and name. */
  readonly copies: Map<string, Tensor>;
}

function modulePaths(nodes: readonly GraphNode[]): string[] {
  return nodes.flatMap(({ modules = [] }) => modules.map(({ path }) => path.replace(/@\d+/g, '')));
}
