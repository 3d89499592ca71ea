/** @file The tensors of a training run under the names of the whole model: parameters, buffers and the state of optimizers. */
import type { optim, Tensor } from '@pipewright/torch';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { PipelineStage } from '../../stage/pipeline-stage.ts';
import { type Part, pieceOf } from '../format/piece.ts';

/** An optimizer whose state can be saved. */
export interface SavedOptimizer {
  readonly paramGroups: readonly { readonly params: readonly Tensor[] }[];
  stateDict(): optim.OptimizerState;
  /** With `copy: false` it may keep the tensors it is given. */
  loadStateDict(state: optim.OptimizerState, options?: { readonly copy?: boolean | undefined }): void;
  /** Refuses what `loadStateDict` would refuse, and changes nothing. */
  checkStateDict?(state: optim.OptimizerState): void;
}

/** A tensor of a run: all of it, or the part that this rank holds. */
export interface StateTensor {
  /** The name in the whole model; of an optimizer's state `name/slot`. */
  readonly key: string;
  readonly kind: 'parameter' | 'buffer' | 'optimizer';
  readonly tensor: Tensor;
  /** The part of the whole that it is. */
  readonly part: Part;
  readonly stage: number;
  /** The name that copies in several stages share; null where there is only one. */
  readonly tie: string | null;
  /** More names of the same tensor. */
  readonly aliases: readonly string[];
}

/** The stages given, as an array. */
export function stagesOf(where: string, stages: unknown): readonly PipelineStage[] {
  const list: readonly unknown[] = Array.isArray(stages) ? stages : [stages];
  if (list.length > 0 && list.every((stage) => stage instanceof PipelineStage)) return list as PipelineStage[];
  throw new PipelineError(
    'BAD_OPTION',
    `${where}: stages is ${show(stages)}; give the stages of this rank: { stages: runtime.stages }`,
  );
}

/** The optimizers given, as an array. */
export function optimizersOf(where: string, optimizer: unknown): readonly SavedOptimizer[] {
  if (optimizer === undefined) return [];
  const list: readonly unknown[] = Array.isArray(optimizer) ? optimizer : [optimizer];
  for (const one of list) {
    const { paramGroups, stateDict, loadStateDict } = (one ?? {}) as Partial<SavedOptimizer>;
    if (!Array.isArray(paramGroups) || typeof stateDict !== 'function' || typeof loadStateDict !== 'function')
      throw new PipelineError(
        'BAD_OPTION',
        `${where}: optimizer is ${show(one)}; give an optimizer, or an array of them`,
      );
  }
  return list as SavedOptimizer[];
}

/** Parameters and persistent buffers of stages, each once, with all their names. */
export function weightsOf(stages: readonly PipelineStage[]): StateTensor[] {
  const byTensor = new Map<Tensor, { names: string[]; stage: PipelineStage; local: string[]; isBuffer: boolean }>();
  const names = new Map<string, Tensor>();
  for (const stage of stages) {
    const { module } = stage;
    const state = module.stateDict({ keepVars: true });
    const parameters = new Set<Tensor>(module.parameters());
    for (const [local, tensor] of state) {
      const name = stage.wholeName(local);
      const other = names.get(name);
      if (other !== undefined && other !== tensor && !areTied(byTensor.get(other), stage, local))
        throw clash(name, [byTensor.get(other)?.stage.stageIndex ?? 0, stage.stageIndex]);
      names.set(name, tensor);
      const known = byTensor.get(tensor);
      if (known === undefined)
        byTensor.set(tensor, { names: [name], stage, local: [local], isBuffer: !parameters.has(tensor) });
      else {
        if (!known.names.includes(name)) known.names.push(name);
        known.local.push(local);
      }
    }
  }
  return [...byTensor].map(
    ([
      tensor,
      {
        names: [key, ...aliases],
        stage,
        local,
        isBuffer,
      },
    ]) => ({
      key: key!,
      kind: isBuffer ? 'buffer' : 'parameter',
      tensor,
      part: pieceOf(tensor),
      stage: stage.stageIndex,
      tie: local.map((each) => stage.ties[each]).find((tie) => tie !== undefined) ?? null,
      aliases,
    }),
  );
}

function areTied(
  first: { readonly stage: PipelineStage; readonly local: readonly string[] } | undefined,
  stage: PipelineStage,
  local: string,
): boolean {
  const tie = stage.ties[local];
  return tie !== undefined && first?.local.some((each) => first.stage.ties[each] === tie) === true;
}

/** The error for one name in two stages. */
export function clash(name: string, [first, second]: readonly [number, number]): PipelineError {
  return new PipelineError(
    'NAME_CLASH',
    `checkpoint: '${name}' is in stage ${first} and in stage ${second}, and they are not tied; give each parameter its name in the whole model: new PipelineStage(module, ${second}, …, { names: { '': 'stages.${second}' } })`,
    { name, stages: [first, second] },
  );
}

/** The error for a parameter in two optimizers. */
function inTwo(name: string, [first, second]: readonly [number, number]): PipelineError {
  return new PipelineError(
    'CHECKPOINT_STATE',
    `checkpoint: '${name}' is in optimizer ${first} and in optimizer ${second}, but a checkpoint holds what one optimizer remembers of a parameter; give each parameter to one optimizer, in a group of its own where it has other options`,
    { name, optimizers: [first, second] },
  );
}

/** The state of optimizers by parameter name; the names come from `weights`. */
export function optimizerTensors(
  optimizers: readonly SavedOptimizer[],
  weights: readonly StateTensor[],
): { readonly tensors: StateTensor[]; readonly groups: NamedGroup[] } {
  const known = new Map(weights.map((weight) => [weight.tensor, weight]));
  const tensors: StateTensor[] = [];
  const groups: NamedGroup[] = [];
  const movers = new Map<Tensor, number>();
  optimizers.forEach((optimizer, at) => {
    const { state, paramGroups } = optimizer.stateDict();
    const flat = optimizer.paramGroups.flatMap(({ params }) => params);
    const owners = flat.map((parameter) => known.get(parameter) ?? refuseParameter(at));
    for (const { tensor, key } of owners) {
      const other = movers.get(tensor) ?? at;
      if (other !== at) throw inTwo(key, [other, at]);
      movers.set(tensor, at);
    }
    for (const [index, record] of Object.entries(state)) {
      const owner = owners[Number(index)]!;
      for (const [slot, tensor] of Object.entries(record as Record<string, Tensor>))
        tensors.push({
          ...owner,
          key: `${owner.key}/${slot}`,
          kind: 'optimizer',
          tensor,
          part: slotPart(owner, slot, tensor),
          aliases: owner.aliases.map((name) => `${name}/${slot}`),
        });
    }
    paramGroups.forEach((group, g) => {
      const { params, paramNames: _, ...options } = group as typeof group & { paramNames?: unknown };
      groups.push({ optimizer: at, group: g, options, params: params.map((i) => owners[i]!.key) });
    });
  });
  return { tensors, groups };
}

/** Options of a group of parameters, by their names. */
export interface NamedGroup {
  readonly optimizer: number;
  readonly group: number;
  readonly options: Readonly<Record<string, unknown>>;
  readonly params: readonly string[];
}

/** The part of an optimizer's tensor for a parameter of which this rank holds a part. */
export function slotPart(owner: StateTensor, slot: string, { shape }: { readonly shape: readonly number[] }): Part {
  const { part } = owner;
  if (part.offset === null || shape.length === 0) return { shape, local: shape, offset: null };
  if (shape.join() === part.local.join()) return part;
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `checkpoint: '${slot}' of '${owner.key}' is [${shape.join(', ')}], but this rank holds [${part.local.join(', ')}] of the parameter; state that is neither one number nor like its parameter belongs to one layout and cannot be saved or loaded with shards; use replicate, or an optimizer whose state is like its parameters`,
    { name: owner.key, slot },
  );
}

function refuseParameter(at: number): never {
  throw new PipelineError(
    'CHECKPOINT_STATE',
    `checkpoint: optimizer ${at} has a parameter that no stage of this rank holds, so it has no name; pass all stages whose parameters it moves`,
  );
}
