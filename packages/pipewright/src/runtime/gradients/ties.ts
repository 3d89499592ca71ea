/**
 * @file Tied parameters: several stages hold a copy of one parameter. After a step the copies' gradients of that step are
 * summed over all holders, in the order of the stages, so that every copy has the gradient of the whole and, under the same
 * optimizer, all copies stay equal.
 */
import type { Schedule } from '@pipewright/schedule';
import { type nn, noGrad, scope, type Tensor, unscoped } from '@pipewright/torch';
import { PipelineError } from '../../base/errors.ts';
import { tieTags } from '../../base/tags.ts';
import { shardOf } from '../../parallel/shard.ts';
import type { PipelineStage } from '../../stage/pipeline-stage.ts';
import type { StageDescription } from '../../stage/wiring.ts';
import { rankStatus } from '../../status/rank-status.ts';
import { refusal, refusalIn } from '../row/refusal.ts';
import type { Payload, Transport } from '../transport/transport.ts';

/** One copy of a tied parameter on some rank. */
interface Holder {
  readonly stage: number;
  readonly rank: number;
  /** Its name in the stage. */
  readonly path: string;
  /** The module of the stage, where this rank holds it. */
  readonly module: nn.Module | null;
  /** The copy itself, where this rank holds it. */
  readonly parameter: Tensor | null;
}

/** All copies of one tied parameter, by stage. */
interface TieGroup {
  readonly name: string;
  readonly holders: readonly Holder[];
  readonly tags: ReturnType<typeof tieTags>;
}

/** A copy of a tied parameter, as the other ranks must know it. Plain JSON. */
export interface TiedCopy {
  /** Its name in the stage. */
  readonly path: string;
  /** The name of the tie. */
  readonly name: string;
  readonly dtype: string;
  /** What this rank holds: shards are summed with their counterparts. */
  readonly shape: readonly number[];
  /** Which part of the whole this rank holds; null where it holds all of it. */
  readonly cut: { readonly globalShape: readonly number[]; readonly dim: number; readonly offset: number } | null;
  readonly frozen: boolean;
  /** The same number for all copies of a rank that are one tensor. */
  readonly tensor: number;
}

/** The sum of the gradients of a tie. */
interface Summed {
  /** Null if no copy got a gradient. */
  readonly sum: Tensor | null;
  /** Why no copy may get it; null where all do. The same on all ranks that hold one. */
  readonly refused: string | null;
}

/** The pipeline that ties belong to, seen from one rank. */
export interface TiedPipeline {
  readonly rank: number;
  readonly stages: readonly PipelineStage[];
  readonly descriptions: readonly StageDescription[];
  readonly schedule: Schedule;
  /** Null where one rank is alone. */
  readonly transport: Transport | null;
}

/** Whether a copy has gradients of earlier steps that are not summed yet; it may be frozen by now. */
type Owes = (parameter: Tensor) => boolean;

/** The tied parameters of a pipeline, seen from one rank. */
export class Ties {
  private readonly groups: readonly TieGroup[];
  private readonly transport: Transport | null;
  private readonly rank: number;
  /** Gradients of earlier steps, put aside during a step. */
  private readonly aside = new Map<Tensor, Tensor>();

  constructor({ rank, stages, descriptions, schedule, transport }: TiedPipeline) {
    this.transport = transport;
    this.rank = rank;
    const local = new Map(stages.map(({ stageIndex, module }) => [stageIndex, module]));
    const byName = new Map<string, Holder[]>();
    for (const { stage, ties } of descriptions) {
      for (const [parameter, name] of Object.entries(ties)) {
        const module = local.get(stage) ?? null;
        const holder: Holder = {
          ...{ stage, rank: schedule.stageToRank[stage]!, path: parameter, module },
          parameter: module?.getParameter(parameter) ?? null,
        };
        byName.set(name, [...(byName.get(name) ?? []), holder]);
      }
    }
    this.groups = [...byName]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, holders], i) => ({ name, holders, tags: tieTags(i) }))
      .filter(({ holders }) => holders.some(({ rank }) => rank === this.rank));
    for (const tie of this.groups) this.unify(tie);
  }

  /** The copies of this rank that are left out of the norm of all gradients, because another copy is in it. */
  duplicates(): Set<Tensor> {
    const found = new Set<Tensor>();
    for (const { holders } of this.groups) {
      const owner = holders[0]?.parameter ?? null;
      for (const { parameter } of holders.slice(1)) if (parameter !== null && parameter !== owner) found.add(parameter);
    }
    return found;
  }

  /** All copies of this rank. */
  parameters(): Set<Tensor> {
    return this.copies();
  }

  /** Before a training step: refuses copies of this rank that would diverge, because they were replaced or only some are frozen. */
  check(): void {
    for (const { name, holders } of this.groups) {
      const own = holders.filter(({ parameter }) => parameter !== null);
      const frozen = own.find(({ parameter }) => !parameter!.requiresGrad);
      const learned = own.find(({ parameter }) => parameter!.requiresGrad);
      if (frozen !== undefined && learned !== undefined)
        throw new PipelineError('TIE_MISMATCH', `step: ${frozenText(name, frozen.stage, `stage ${learned.stage}`)}`, {
          ...{ stage: frozen.stage, parameter: frozen.path, tie: name },
        });
      for (const { stage, path, module, parameter } of holders)
        if (module !== null && module.getParameter(path) !== parameter)
          throw new PipelineError(
            'TIE_MISMATCH',
            `step: the tied parameter '${name}' ('${path}' of stage ${stage}) was replaced by another one since the first step, and its gradients would not be summed over the stages; give the one that was there its new values with copy_, or make a new PipelineRuntime on all ranks`,
            { stage, parameter: path, tie: name },
          );
    }
  }

  /** Puts aside what earlier steps have accumulated, so that it is not summed again. */
  begin(): void {
    for (const parameter of this.copies()) {
      const before = unscoped(() => parameter.grad);
      if (before === null) continue;
      this.aside.set(parameter, before);
      parameter.grad = null;
    }
  }

  /**
   * Sums the gradients of this step over all holders, and with them those that earlier ones have left to it. No copy gets one where a
   * tie is refused, on any of its ranks.
   */
  reduce(owes: Owes = () => false): void {
    noGrad(() =>
      scope(() => {
        const sums = this.groups.map((tie) => ({ tie, ...this.sumOver(tie, owes) }));
        for (const { tie, refused } of sums)
          if (refused !== null) throw new PipelineError('TIE_MISMATCH', `step: ${refused}`, { tie: tie.name });
        for (const { tie, sum } of sums)
          for (const parameter of copiesIn(tie)) parameter.grad = sum === null ? null : sum.clone();
        this.giveBack();
      }),
    );
  }

  /** After a step, also one that failed: adds what earlier steps have accumulated. */
  giveBack(): void {
    noGrad(() =>
      scope(() => {
        for (const [parameter, before] of this.aside) {
          const { grad } = parameter;
          parameter.grad = grad === null ? before : grad.add(before);
          before.dispose();
        }
        this.aside.clear();
      }),
    );
  }

  private copies(): Set<Tensor> {
    return new Set(this.groups.flatMap((tie) => [...copiesIn(tie)]));
  }

  /** The sum over all holders, on every rank that holds a copy: gathered where the first copy is, and sent back. */
  private sumOver(tie: TieGroup, owes: Owes): Summed {
    const { holders, tags } = tie;
    const owner = holders[0]!;
    const others = [...new Set(holders.map(({ rank }) => rank))].filter((rank) => rank !== owner.rank);
    const state = stateOf(tie, owes);
    const own = this.contributions(tie, this.rank);
    if (this.rank !== owner.rank) {
      this.send(owner.rank, tags.gather, { tensors: own, ...(state !== 'learned' && { header: state }) });
      const answer = this.receive(tie, owner.rank, tags.spread);
      return { sum: answer.tensors[0] ?? null, refused: refusalIn(answer) };
    }
    const byRank = new Map([[this.rank, { values: own, state }]]);
    for (const rank of others) {
      const { tensors, header } = this.receive(tie, rank, tags.gather);
      byRank.set(rank, { values: [...tensors], state: (header as CopyState | undefined) ?? 'learned' });
    }
    let sum: Tensor | null = null;
    for (const { rank } of uniqueHolders(tie)) {
      const value = byRank.get(rank)!.values.shift() ?? null;
      if (value !== null) sum = sum === null ? value : sum.add(value);
    }
    // A tie without any gradient stays as it is, frozen or not.
    const refused = sum === null ? null : frozenAlone(tie, (rank) => byRank.get(rank)!.state);
    for (const rank of others) this.send(rank, tags.spread, refused === null ? { tensors: [sum] } : refusal(refused));
    return { sum, refused };
  }

  /** One value per copy of a rank, in the order of the stages. */
  private contributions(tie: TieGroup, rank: number): (Tensor | null)[] {
    return uniqueHolders(tie)
      .filter((holder) => holder.rank === rank)
      .map(({ parameter }) => parameter!.grad);
  }

  /** Gives all copies the value of the first one. */
  private unify(tie: TieGroup): void {
    const owner = tie.holders[0]!;
    noGrad(() =>
      scope(() => {
        let value = owner.parameter;
        if (value === null) value = this.receive(tie, owner.rank, tie.tags.gather).tensors[0]!;
        else
          for (const rank of new Set(tie.holders.map((holder) => holder.rank)))
            if (rank !== this.rank) this.send(rank, tie.tags.gather, { tensors: [value.clone()] });
        for (const { parameter } of tie.holders) {
          if (parameter !== null && parameter !== value) parameter.copy_(value); // of one shape and type: all have agreed
        }
      }),
    );
  }

  private receive(tie: TieGroup, peer: number, tag: number): Payload {
    rankStatus.set({ action: `tied '${tie.name}'`, waitingFor: peer });
    const payload = this.transport!.post({ peer, tag }).wait();
    rankStatus.set({ action: `tied '${tie.name}'` });
    return payload;
  }

  private send(peer: number, tag: number, payload: Payload): void {
    this.transport!.send({ peer, tag }, payload);
  }
}

/** The tied copies of each stage of a rank, as the other ranks must know them. */
export function tiedCopies(stages: readonly PipelineStage[]): TiedCopy[][] {
  const tensors = new Map<Tensor, number>();
  return stages.map(({ module, ties }) =>
    Object.entries(ties).map(([path, name]): TiedCopy => {
      const parameter = module.getParameter(path);
      const shard = shardOf(parameter);
      if (!tensors.has(parameter)) tensors.set(parameter, tensors.size);
      return {
        ...{ path, name, dtype: parameter.dtype.name, shape: parameter.shape, frozen: !parameter.requiresGrad },
        cut:
          shard === null || shard.group.size === 1
            ? null
            : { globalShape: shard.globalShape, dim: shard.dim, offset: shard.offset },
        tensor: tensors.get(parameter)!,
      };
    }),
  );
}

/** The text that only some copies of a tied parameter are frozen. */
export function frozenText(tie: string, stage: number, elsewhere: string): string {
  return `the tied parameter '${tie}' is frozen on stage ${stage} and learned on ${elsewhere}, so that its copies would not stay equal; freeze it on all stages that hold it (requiresGrad_(false)), or on none`;
}

/** Whether the copies of a rank are trainable, frozen, or frozen with gradients of earlier steps that are not summed yet. */
type CopyState = 'learned' | 'frozen' | 'owed';

/** The state of this rank's copies. */
function stateOf({ holders }: TieGroup, owes: Owes): CopyState {
  const frozen = holders.find(({ parameter }) => parameter?.requiresGrad === false)?.parameter ?? null;
  if (frozen === null) return 'learned';
  return owes(frozen) ? 'owed' : 'frozen';
}

/** Why copies cannot all get the sum: some are frozen and others are not; null if they are alike. */
function frozenAlone({ name, holders }: TieGroup, stateOn: (rank: number) => CopyState): string | null {
  const states: readonly CopyState[] = ['frozen', 'owed', 'learned'];
  const [first, ...others] = states.flatMap((state) => holders.find(({ rank }) => stateOn(rank) === state) ?? []);
  const [other] = others;
  return first === undefined || other === undefined ? null : frozenText(name, first.stage, `stage ${other.stage}`);
}

function copiesIn(tie: TieGroup): Set<Tensor> {
  return new Set(tie.holders.flatMap(({ parameter }) => (parameter === null ? [] : [parameter])));
}

/** Holders without those that share one tensor with an earlier one on the same rank. */
function uniqueHolders(tie: TieGroup): Holder[] {
  const seen = new Set<Tensor>();
  return tie.holders.filter(({ parameter }) => {
    if (parameter === null) return true;
    if (seen.has(parameter)) return false;
    seen.add(parameter);
    return true;
  });
}
