/**
 * @file Copies of states on other ranks. At the beginning of a step every rank takes a snapshot and sends a copy to the ranks that
 * keep one. After a loss all ranks exchange what they have and derive the same plan, and a new rank gets its state from the others.
 */
import type { distributed, Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { COPY_TAG, SHARED_TAG, STATE_TAG } from '../base/tags.ts';
import { type Copy, fromTensors, Newest, type Part, type Snapshot, toTensors } from './snapshot.ts';
import type { RankState } from './state.ts';

/** What a rank has after a loss. Plain JSON. */
interface Holdings {
  /** Steps of which it has its own state. */
  readonly own: readonly number[];
  /** Copies that it keeps of others. */
  readonly kept: readonly { readonly rank: number; readonly step: number; readonly shared: boolean }[];
  readonly replicaKey: string | null;
  /** How many steps it has begun. */
  readonly begun: number;
}

/** Where a rank's state comes from. */
interface Source {
  readonly rank: number;
  /** The rank that has the part of its state that the lost rank alone had. */
  readonly own: number;
  /** The rank that has the part that its replicas share; `isReplica`: it is one of them. */
  readonly shared: number;
  readonly isReplica: boolean;
}

/** How all ranks recover; the same on all of them. */
export interface RecoveryPlan {
  /** The step from which all continue; undefined if no rank has a state. */
  readonly step: number | undefined;
  readonly sources: readonly Source[];
  /** The most steps that any rank has begun; those after `step` are repeated. */
  readonly begun: number;
  /** Ranks without any copy left, if there is no such step although some ranks have states. */
  readonly missing: readonly number[];
}

/** The snapshots that this rank has: its own, and copies of others. */
export class Copies {
  private readonly state: RankState;
  /** How many other ranks keep a copy. */
  readonly count: number;
  /** How many replicas can take the place of a copy. */
  private replicas = 0;
  private readonly own = new Newest<Snapshot>();
  private readonly kept = new Map<number, Newest<Copy>>();

  constructor(state: RankState, count: number) {
    this.state = state;
    this.count = count;
  }

  /** Takes a snapshot, sends copies to the ranks that keep them, and returns when all ranks have done so. */
  commit(group: distributed.ProcessGroup, step: number): void {
    const snapshot = this.state.take(step);
    this.spread(group, snapshot);
    this.own.add(snapshot);
  }

  /** Exchanges with all ranks what each has, and plans the recovery. */
  plan(group: distributed.ProcessGroup, begun: number): RecoveryPlan {
    const mine: Holdings = {
      own: this.own.steps,
      kept: [...this.kept].flatMap(([rank, copies]) =>
        copies.steps.map((step) => ({ rank, step, shared: copies.at(step)?.shared !== null })),
      ),
      replicaKey: this.state.replicaKey(),
      begun,
    };
    const all = group.allGatherObject(mine as unknown as distributed.Json) as unknown as Holdings[];
    this.replicas = spareReplicas(
      all.map(({ replicaKey }) => replicaKey),
      group.rank,
    );
    return planRecovery(all);
  }

  /** Restores the state of this rank as planned, and sends lost ranks theirs. Returns where the state came from. */
  restore(group: distributed.ProcessGroup, { step = 0, sources }: RecoveryPlan): string {
    const from = (what: 'own' | 'shared', rank: number): Part =>
      (rank === group.rank ? this.own : this.kept.get(rank)!).at(step)![what]!;
    for (const { rank, own, shared } of sources) {
      if (own === group.rank) sendPart(group, rank, STATE_TAG, from('own', rank));
      // A replica sends its own state; a rank that keeps a copy sends the copy.
      if (shared === group.rank)
        sendPart(group, rank, SHARED_TAG, (this.kept.get(rank)?.at(step)?.shared ?? this.own.at(step)?.shared)!);
    }
    const mine = sources.find(({ rank }) => rank === group.rank);
    if (mine !== undefined)
      this.own.add({
        step,
        own: receivePart(group, mine.own, STATE_TAG),
        shared: receivePart(group, mine.shared, SHARED_TAG),
      });
    this.own.only(step);
    const snapshot = this.own.at(step);
    if (snapshot === undefined) throw new PipelineError('INTERNAL', `internal: no snapshot of step ${step}`);
    this.state.put(snapshot);
    this.spread(group, snapshot);
    if (mine === undefined) return '';
    const copy = `the copy that rank ${mine.own} kept`;
    return mine.isReplica ? `its replica, rank ${mine.shared}, and ${copy}` : copy;
  }

  /** Forgets everything. */
  dispose(): void {
    this.own.dispose();
    for (const copies of this.kept.values()) copies.dispose();
    this.kept.clear();
  }

  /** Sends copies to the ranks that keep them and receives those of others; the barrier waits until all have theirs. */
  private spread(group: distributed.ProcessGroup, { step, own, shared }: Snapshot): void {
    const { rank, size } = group;
    const keepers = keepersOf(rank, size, this.count);
    // Other replicas count as copies, but only after the first step: before it they may differ.
    const whole = step === 0 || this.replicas < this.count;
    const tensors = [...toTensors(own), ...(whole ? toTensors(shared) : [])];
    const header = { step, own: own.tensors.length + 1, whole };
    for (const keeper of keepers) group.channel(keeper).sendMessage(COPY_TAG, { tensors, header });
    for (let other = 0; other < size; other++) {
      if (other === rank || !keepersOf(other, size, this.count).includes(rank)) continue;
      const message = group.channel(other).recvMessage(COPY_TAG);
      const got = message.header as { step: number; own: number; whole: boolean };
      const copies = this.kept.get(other) ?? new Newest<Copy>();
      this.kept.set(other, copies);
      copies.add({
        step: got.step,
        own: fromTensors(message.tensors.slice(0, got.own)),
        shared: got.whole ? fromTensors(message.tensors.slice(got.own)) : null,
      });
    }
    group.barrier();
  }
}

/** How many ranks each machine has. */
function ranksPerMachine(size: number): number {
  return Number(process.env['LOCAL_WORLD_SIZE'] ?? size);
}

/** Other ranks with the same parameters; with several machines, other machines with such ranks. */
function spareReplicas(keys: readonly (string | null)[], rank: number): number {
  const local = ranksPerMachine(keys.length);
  const machineOf = (one: number): number => (local < keys.length ? Math.floor(one / local) : one);
  const alike = keys.flatMap((key, other) => (key !== null && key === keys[rank] ? [machineOf(other)] : []));
  return new Set(alike.filter((machine) => machine !== machineOf(rank))).size;
}

/** The ranks that keep copies of a rank's state: on other machines, where there are several. */
function keepersOf(rank: number, size: number, count: number): number[] {
  const local = ranksPerMachine(size);
  const stride = local < size ? local : 1;
  const keepers: number[] = [];
  for (let i = 1; i < size && keepers.length < count; i++) {
    const keeper = (rank + i * stride + Math.floor((i * stride) / size)) % size;
    if (keeper !== rank && !keepers.includes(keeper)) keepers.push(keeper);
  }
  return keepers;
}

/** Plans from the newest step of which the state of every rank is available. The same on all ranks. */
export function planRecovery(ranks: readonly Holdings[]): RecoveryPlan {
  const begun = Math.max(...ranks.map((one) => one.begun));
  const steps = [...new Set(ranks.flatMap(({ own, kept }) => [...own, ...kept.map(({ step }) => step)]))];
  let missing: number[] = [];
  for (const step of steps.toSorted((a, b) => b - a)) {
    const sources = ranks.flatMap(({ own }, rank) => (own.includes(step) ? [] : [sourceOf(ranks, rank, step)]));
    const lost = sources.flatMap(({ rank, own, shared }) => (own < 0 || shared < 0 ? [rank] : []));
    if (lost.length === 0) return { step, sources, begun, missing: [] };
    if (missing.length === 0 || lost.length < missing.length) missing = lost;
  }
  return { step: undefined, sources: [], begun, missing };
}

function sourceOf(ranks: readonly Holdings[], rank: number, step: number): Source {
  const keeps = (other: Holdings, shared: boolean): boolean =>
    other.kept.some((copy) => copy.rank === rank && copy.step === step && (!shared || copy.shared));
  const key = ranks[rank]?.replicaKey ?? null;
  const replica = ranks.findIndex((other) => key !== null && other.replicaKey === key && other.own.includes(step));
  const keeper = ranks.findIndex((other) => keeps(other, true));
  return {
    rank,
    own: keeper >= 0 ? keeper : ranks.findIndex((other) => keeps(other, false)),
    shared: keeper >= 0 ? keeper : step === 0 ? -1 : replica,
    isReplica: keeper < 0,
  };
}

function sendPart(group: distributed.ProcessGroup, to: number, tag: number, part: Part): void {
  group.channel(to).sendMessage(tag, { tensors: toTensors(part) });
}

function receivePart(group: distributed.ProcessGroup, from: number, tag: number): Part {
  return fromTensors(group.channel(from).recvMessage(tag).tensors as Tensor[]);
}
