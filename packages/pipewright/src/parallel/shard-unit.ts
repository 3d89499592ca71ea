/**
 * @file A unit: parameters that are gathered and reduced together, and the memory of their wholes.
 *
 * The storage of the whole is emptied when it is not needed and filled again later: what autograd has saved of it stays valid.
 * Between threads all ranks of a group have one copy of the whole, into which each writes its shard.
 */
import {
  callOp,
  cat,
  commonTensor,
  type DType,
  type distributed,
  empty,
  forgetCommonTensors,
  freeStorage,
  lendStorage,
  type nn,
  noGrad,
  scope,
  type Tensor,
  unscoped,
  zeros,
} from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { isDue, oweLearned, settleOwed } from './owed.ts';
import { type Cut, ShardedParameter, total } from './sharded-parameter.ts';
import { UnitReduction } from './unit-reduction.ts';
import type { UnitSettings } from './unit-settings.ts';

/** Parameters of one type and device that are gathered and reduced together. */
export class ShardUnit {
  private given: UnitSettings;
  private readonly entries: readonly ShardedParameter[];
  /** The same on all ranks of the group, and different for each of its units. */
  private key: string;
  private readonly device: string;
  private readonly dtype: DType;
  private readonly wholeDtype: DType;
  /** Whether the ranks of the group are threads that can have one copy of the whole. */
  private readonly isShared: boolean;
  private generation = 0;
  private gathering: distributed.Work<Tensor[] | void> | null = null;
  /** Memory of the wholes while they have any. */
  private memory: Tensor | null = null;
  /** Stages that need the wholes at the moment. */
  private users = 0;

  constructor(settings: UnitSettings, cuts: readonly Cut[], key: string) {
    const [first] = cuts as readonly [Cut];
    this.given = settings;
    this.key = key;
    this.device = first.parameter.device;
    this.dtype = first.parameter.dtype;
    this.wholeDtype = settings.paramDtype ?? this.dtype;
    this.isShared = settings.group.backend === 'thread' && this.device === 'cpu';
    this.entries = noGrad(() => scope(() => cuts.map((cut) => new ShardedParameter(cut, settings))));
    if (settings.level === 'parameters') return;
    noGrad(() => scope(() => this.settle()));
  }

  /** What its parameters have in common. */
  get settings(): UnitSettings {
    return this.given;
  }

  /** Uses groups that replace the earlier ones, which are closed; the shards and their values stay. */
  follow(settings: UnitSettings, key: string): void {
    const { group, replicas } = settings;
    this.restore();
    this.forget();
    this.given = { ...this.given, group, replicas };
    this.key = key;
    this.generation = 0;
    for (const entry of this.entries) entry.follow(settings);
    // Threads shared one copy of the wholes with a rank that is gone.
    if (this.isShared && settings.level !== 'parameters') noGrad(() => scope(() => this.settleAnew()));
  }

  /** Bytes of the wholes. */
  get wholeBytes(): number {
    return this.entries.reduce((sum, { sizes }) => sum + total(sizes), 0) * this.wholeDtype.itemSize;
  }

  /** Bytes of this rank's shards that are not part of the wholes. */
  get shardBytes(): number {
    const own = this.entries.filter(({ inPlace }) => !inPlace);
    return own.reduce((sum, { sizes }) => sum + sizes[this.settings.group.rank]!, 0) * this.dtype.itemSize;
  }

  /** Whether the wholes have memory. */
  get hasWhole(): boolean {
    return this.memory !== null || this.gathering !== null;
  }

  /** The parameters, as modules have them. */
  get parameters(): readonly nn.Parameter[] {
    return this.entries.map(({ parameter }) => parameter);
  }

  /** How they are cut. */
  get cuts(): Cut[] {
    return this.entries.map(({ parameter, name, shard }) => ({ parameter, name, dim: shard.dim }));
  }

  /** Names of the parameters, for messages. */
  toString(): string {
    const [first, ...more] = this.entries as readonly [ShardedParameter];
    return more.length === 0 ? first.name : `${first.name} and ${more.length} more`;
  }

  // --- whole parameters ----------------------------------------------------------------------------------------------

  /** Refuses shards that cannot be part of the wholes any more; all ranks do so before a step. */
  check(): void {
    for (const entry of this.entries) {
      if (!entry.inPlace) continue;
      const { dtype, device } = entry.own;
      if (dtype === this.dtype && device === this.device) continue;
      throw new PipelineError(
        'BAD_INPUT',
        `fullyShard: the parameter '${entry.name}' is ${dtype.name} on ${device} now, and was ${this.dtype.name} on ${this.device} when it was sharded; change the type or the device of a module before fullyShard`,
        { parameter: entry.name },
      );
    }
  }

  /** Puts the wholes in the place of the shards and begins to gather them. Returns whether anything was begun. */
  gather(): boolean {
    if (this.users++ > 0) return false;
    noGrad(() =>
      scope(() => {
        this.returnToPlace();
        if (this.isShared) this.writeShared();
        else this.startGather();
      }),
    );
    this.use('whole');
    return true;
  }

  /** Waits until the wholes have their values. */
  wait(): void {
    const { gathering } = this;
    if (gathering === null) return;
    const given = gathering.wait();
    this.gathering = null;
    if (given === undefined) return;
    noGrad(() => scope(() => this.unpack(given)));
    for (const each of given) each.dispose();
  }

  /** The shards are back in their place, and the memory of the wholes is free where they are sharded. */
  release(): void {
    if (this.users === 0 || --this.users > 0) return;
    this.wait();
    this.restore();
  }

  /** As `release` after a failure, whatever state it is in. */
  restore(): void {
    this.users = 0;
    this.gathering = null;
    this.use('shard');
    if (this.settings.level !== 'parameters') return;
    for (const { whole } of this.entries) freeStorage(whole);
    this.memory?.dispose();
    this.memory = null;
  }

  /** Drops the gradients that a failed step has left in the wholes. */
  forget(): void {
    for (const entry of this.entries) entry.whole.grad = null;
    if (this.isShared) forgetCommonTensors(`${this.key} `);
  }

  /** Removes the gradients of the wholes; calling the result restores them. */
  putGradsAside(): () => void {
    const grads = this.entries.map((entry) => {
      const { whole } = entry;
      const grad = unscoped(() => whole.grad);
      whole.grad = null;
      return grad;
    });
    return () => {
      this.entries.forEach((entry, i) => {
        entry.whole.grad = grads[i] ?? null;
        grads[i]?.dispose();
      });
    };
  }

  /** Where ranks share the memory of the wholes: waits until all of them have finished with it. */
  settleShared(): void {
    if (this.isShared && this.settings.level !== 'parameters') this.settings.group.barrier();
  }

  // --- gradients -----------------------------------------------------------------------------------------------------

  /** Begins to sum the gradients of the wholes over the group; null where none is trainable, nor was since the last sum. */
  reduce(): UnitReduction | null {
    const due = this.entries.filter(({ parameter }) => isDue(parameter, this.settings.group));
    if (due.length === 0) return null;
    const wholes = { dtype: this.wholeDtype, device: this.device };
    return noGrad(() => scope(() => new UnitReduction(due, this.settings, wholes)));
  }

  /** A step has summed nothing: its gradients stay in the wholes until one does. */
  owe(): void {
    oweLearned(this.parameters, this.settings.group);
  }

  /** All gradients were summed. */
  settleOwed(): void {
    settleOwed(this.parameters);
  }

  // --- inside --------------------------------------------------------------------------------------------------------

  private use(form: 'whole' | 'shard'): void {
    for (const entry of this.entries) entry.use(form);
  }

  /** Gives the wholes memory that they keep; shards become part of it. */
  private settle(): void {
    const { rank } = this.settings.group;
    this.allocate();
    for (const { parameter, parts, inPlace } of this.entries) {
      if (!inPlace) continue;
      const part = parts[rank]!.view(parameter.shape);
      part.copy_(parameter);
      parameter.become(part);
    }
  }

  /** Shards that were given other memory, as by `loadStateDict` with `assign`, become part of the wholes again. */
  private returnToPlace(): void {
    const { rank } = this.settings.group;
    for (const { parameter, parts, inPlace } of this.entries) {
      const part = parts[rank]!;
      if (!inPlace || part.numel() === 0) continue;
      if (parameter.dataPtr() === part.dataPtr() && parameter.isContiguous()) continue;
      const place = part.view(parameter.shape);
      place.copy_(parameter.detach().clone());
      // Those of another type or device stay apart: a training step refuses them.
      if (parameter.dtype === this.dtype && parameter.device === this.device) parameter.setData(place);
    }
  }

  /** Gives the wholes new memory, with the shards that are part of them: optimizers hold these, so the tensors stay the same. */
  private settleAnew(): void {
    const values = this.entries.map(({ parameter, inPlace }) => (inPlace ? parameter.detach().clone() : null));
    this.memory?.dispose();
    this.memory = null;
    this.allocate();
    this.entries.forEach(({ parameter }, i) => {
      const value = values[i] ?? null;
      if (value !== null) parameter.detach().copy_(value);
    });
  }

  /** Gives the wholes memory. */
  private allocate(): void {
    if (this.memory !== null) return;
    const sizes = this.entries.map((entry) => total(entry.sizes));
    const shape = [total(sizes)];
    const { group } = this.settings;
    this.memory = unscoped(() =>
      this.isShared
        ? commonTensor(shape, {
            name: `${this.key} ${this.generation++}`,
            parties: group.size,
            dtype: this.wholeDtype,
          })
        : empty(shape, { dtype: this.wholeDtype, device: this.device }),
    );
    const pieces = callOp('aten::split_with_sizes', [this.memory, sizes, 0]) as Tensor[];
    this.entries.forEach((entry, i) => {
      lendStorage(entry.whole, pieces[i]!.view(entry.shard.globalShape));
    });
  }

  /** Between threads: every rank writes its shard into the shared memory. */
  private writeShared(): void {
    const { group } = this.settings;
    this.allocate();
    const copied = this.entries.filter(({ inPlace }) => !inPlace);
    if (copied.length > 0)
      callOp('aten::_foreach_copy_', [
        copied.map(({ parts }) => parts[group.rank]!),
        copied.map(({ own, shard }) => (shard.dim === 0 ? own.detach().reshape([-1]) : own.detach())),
      ]);
    this.gathering = group.barrier({ asyncOp: true });
  }

  private startGather(): void {
    const { group } = this.settings;
    const lengths = Array.from({ length: group.size }, (_, rank) =>
      total(this.entries.map((entry) => entry.sizes[rank]!)),
    );
    const missing = Math.max(...lengths) - lengths[group.rank]!;
    const { dtype, device } = this;
    const rows = this.entries.map((entry) => entry.own.detach().reshape([-1]));
    if (missing > 0) rows.push(zeros([missing], { dtype, device }));
    const packed = cat(rows).to(this.wholeDtype);
    this.gathering = unscoped(() => group.allGather(packed, { asyncOp: true }));
  }

  private unpack(given: readonly Tensor[]): void {
    this.allocate();
    const { rank: own } = this.settings.group;
    const targets: Tensor[] = [];
    const sources: Tensor[] = [];
    given.forEach((row, rank) => {
      const sizes = this.entries.map((entry) => entry.sizes[rank]!);
      const pieces = callOp('aten::split_with_sizes', [row, [...sizes, row.numel() - total(sizes)], 0]) as Tensor[];
      this.entries.forEach((entry, i) => {
        if (entry.inPlace && rank === own) return;
        const target = entry.parts[rank]!;
        targets.push(target);
        sources.push(pieces[i]!.view(target.shape));
      });
    });
    if (targets.length > 0) callOp('aten::_foreach_copy_', [targets, sources]);
  }
}
