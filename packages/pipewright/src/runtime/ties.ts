/**
 * @file Tied parameters: several stages hold a copy of one parameter. After a step the copies' gradients of that step are
 * summed over all holders, in the order of the stages, so that every copy has the gradient of the whole and, under the same
 * optimizer, all copies stay equal.
 */
import type { Schedule } from '@pipewright/schedule';
import { type nn, noGrad, scope, type Tensor, unscoped } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { tieTags } from '../base/tags.ts';
import type { PipelineStage } from '../stage/pipeline-stage.ts';
import type { StageDescription } from '../stage/wiring.ts';
import { rankStatus } from '../status/rank-status.ts';
import type { Payload, Transport } from './transport/transport.ts';

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

/** The pipeline that ties belong to, seen from one rank. */
export interface TiedPipeline {
  readonly rank: number;
  readonly stages: readonly PipelineStage[];
  readonly descriptions: readonly StageDescription[];
  readonly schedule: Schedule;
  /** Null where one rank is alone. */
  readonly transport: Transport | null;
}

/** Whether a copy brings to this step what earlier ones have learned, and may be frozen by now. */
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

  /** The copies of this rank that another one counts for: left out of the norm of all gradients. */
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

  /** Before a training step: refuses copies of this rank that would become unlike, replaced ones and those that are frozen alone. */
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

  /** Sums the gradients of this step over all holders, and with them those that earlier ones have left to it. */
  reduce(owes: Owes = () => false): void {
    noGrad(() =>
      scope(() => {
        for (const tie of this.groups) {
          const mine = this.sumOver(tie, owes);
          if (mine !== null) checkLearned(tie, owes);
          for (const parameter of copiesIn(tie)) parameter.grad = mine === null ? null : mine.clone();
        }
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
  private sumOver(tie: TieGroup, owes: Owes): Tensor | null {
    const { holders, tags } = tie;
    const owner = holders[0]!;
    const others = [...new Set(holders.map(({ rank }) => rank))].filter((rank) => rank !== owner.rank);
    if (this.rank !== owner.rank) {
      this.send(owner.rank, tags.gather, this.contribution(tie, owes));
      return this.receive(tie, owner.rank, tags.spread).tensors[0] ?? null;
    }
    const byRank = new Map(others.map((rank) => [rank, this.receive(tie, rank, tags.gather)]));
    byRank.set(this.rank, this.contribution(tie, owes));
    const places = new Map<number, number>();
    let sum: Tensor | null = null;
    for (const { rank } of uniqueHolders(tie)) {
      const place = places.get(rank) ?? 0;
      places.set(rank, place + 1);
      const value = byRank.get(rank)?.tensors[place] ?? null;
      if (value !== null) sum = sum === null ? value : sum.add(value);
    }
    // While the others still wait, so that none of them goes on.
    if (sum !== null) checkLearned(tie, owes);
    checkAlike(tie, byRank);
    for (const rank of others) this.send(rank, tags.spread, { tensors: [sum] });
    return sum;
  }

  /** One gradient per copy of this rank, in the order of the stages, and whether all of it is of earlier steps. */
  private contribution(tie: TieGroup, owes: Owes): Payload {
    const own = uniqueHolders(tie).flatMap(({ parameter }) => parameter ?? []);
    const isFrozen = own.some((parameter) => !parameter.requiresGrad && owes(parameter));
    return { tensors: own.map(({ grad }) => grad), ...(isFrozen && { header: OWED }) };
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
        for (const { parameter, stage } of tie.holders) {
          if (parameter === null || parameter === value) continue;
          if (parameter.shape.join() !== value.shape.join() || parameter.dtype !== value.dtype)
            throw new PipelineError(
              'TIE_MISMATCH',
              `the tied parameter '${tie.name}' is ${value.dtype.name}[${value.shape.join(', ')}] on stage ${owner.stage} and ${parameter.dtype.name}[${parameter.shape.join(', ')}] on stage ${stage}; tie parameters of one shape`,
            );
          parameter.copy_(value);
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

/** Names of the ties whose copies on a stage are frozen. */
export function frozenTies({ module, ties }: PipelineStage): string[] {
  return Object.entries(ties).flatMap(([path, name]) => (module.getParameter(path).requiresGrad ? [] : [name]));
}

/** Says that copies of a tied parameter are not learned alike. */
export function frozenText(tie: string, stage: number, elsewhere: string): string {
  return `the tied parameter '${tie}' is frozen on stage ${stage} and learned on ${elsewhere}, so that its copies would not stay equal; freeze it on all stages that hold it (requiresGrad_(false)), or on none`;
}

/** Says of gradients that the copies of their rank are frozen by now. */
const OWED = 'owed';

/** Refuses a gradient of other stages for a copy that is frozen here, and was in the steps that this one sums. */
function checkLearned({ name, holders }: TieGroup, owes: Owes): void {
  const frozen = holders.find(({ parameter }) => parameter?.requiresGrad === false && !owes(parameter));
  if (frozen !== undefined) throw frozenAlone(name, frozen, 'another stage');
}

/** Refuses gradients of this step beside those of ranks whose copies are frozen by now. */
function checkAlike({ name, holders }: TieGroup, byRank: ReadonlyMap<number, Payload>): void {
  const given = holders.filter(({ rank }) => byRank.get(rank)?.tensors.some((tensor) => tensor !== null) === true);
  const frozen = given.find(({ rank }) => byRank.get(rank)?.header === OWED);
  const learned = given.find(({ rank }) => byRank.get(rank)?.header !== OWED);
  if (frozen !== undefined && learned !== undefined) throw frozenAlone(name, frozen, `stage ${learned.stage}`);
}

function frozenAlone(tie: string, { stage, path }: Holder, elsewhere: string): PipelineError {
  return new PipelineError('TIE_MISMATCH', `step: ${frozenText(tie, stage, elsewhere)}`, {
    ...{ stage, parameter: path, tie },
  });
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
