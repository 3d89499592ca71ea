/**
 * @file A unit: parameters that are gathered and reduced together. Each is two tensors: this rank's shard, which is what the
 * module and its optimizer have between steps, and the whole, which takes its place while the stage computes. They exchange
 * places in one and the same Parameter, so that whoever holds it (modules, graphs, optimizers) sees the right one.
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
  nn,
  noGrad,
  scope,
  type Tensor,
  tensor,
  unscoped,
  zeros,
} from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { partOf, type Shard, setShard } from './shard.ts';

/** What is divided among the ranks of a group: the optimizer's states, also the gradients, also the parameters. */
export type ShardLevel = 'optimizer' | 'gradients' | 'parameters';

/** What the parameters of a unit have in common. */
export interface UnitSettings {
  /** The ranks that hold the parts. */
  readonly group: distributed.ProcessGroup;
  /** The ranks that hold the same part; null where there are none. */
  readonly replicas: distributed.ProcessGroup | null;
  readonly level: ShardLevel;
  /** What is computed with; null: the parameters' own type. */
  readonly paramDtype: DType | null;
  /** What gradients are summed in; null: that of the whole. */
  readonly reduceDtype: DType | null;
  /** Whether a stage is given up as soon as another one is needed. */
  readonly reshardAfterForward: boolean;
}

/** A parameter that is to be sharded along a dimension. */
export interface Cut {
  readonly parameter: nn.Parameter;
  readonly name: string;
  readonly dim: number;
}

/** A parameter that is sharded. */
interface Entry {
  /** What the module has: the shard between steps, the whole while it is unsharded. */
  readonly parameter: nn.Parameter;
  /** What the module does not have at the moment. */
  readonly other: nn.Parameter;
  readonly name: string;
  readonly shard: Shard;
  /** The parts of the whole by rank, as views on its storage; each is one row of numbers where that is possible. */
  readonly parts: readonly Tensor[];
  /** Elements of each rank's part. */
  readonly sizes: readonly number[];
  /** Whether the shard is the part of the whole itself. */
  readonly inPlace: boolean;
}

/** Gradients of a unit on their way. */
export interface UnitReduction {
  readonly unit: ShardUnit;
  /** Ends the sum over the group; begins that over replicas. */
  advance(): void;
  /** Whether `advance` would not wait. */
  readonly isReady: boolean;
  /** Waits for everything and gives the shards their gradients. */
  finish(): void;
}

/** Parameters of one type and device that are gathered and reduced together. */
export class ShardUnit {
  private given: UnitSettings;
  private entries: readonly Entry[];
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
  private isSwapped = false;
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
    this.entries = noGrad(() => scope(() => cuts.map((cut) => this.enter(cut))));
    if (settings.level === 'parameters') return;
    noGrad(() => scope(() => this.settle()));
  }

  /** What its parameters have in common. */
  get settings(): UnitSettings {
    return this.given;
  }

  /** Goes on with groups that take the place of those before, which are closed; the shards and their values stay. */
  follow(settings: UnitSettings, key: string): void {
    const { group, replicas } = settings;
    this.restore();
    this.forget();
    this.given = { ...this.given, group, replicas };
    this.key = key;
    this.generation = 0;
    this.entries = this.entries.map((entry) => ({ ...entry, shard: { ...entry.shard, group, replicas } }));
    for (const { parameter, shard } of this.entries) setShard(parameter, shard);
    // Threads had one copy of the wholes with a rank that is gone.
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
    const [first, ...more] = this.entries as readonly [Entry];
    return more.length === 0 ? first.name : `${first.name} and ${more.length} more`;
  }

  // --- whole parameters ----------------------------------------------------------------------------------------------

  /** Refuses shards that cannot be part of the wholes any more; all ranks do so before a step. */
  check(): void {
    for (const entry of this.entries) {
      if (!entry.inPlace) continue;
      const { dtype, device } = this.shardOf(entry);
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
    this.swap(true);
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

  /** The same after a failure, whatever state it is in. */
  restore(): void {
    this.users = 0;
    this.gathering = null;
    this.swap(false);
    if (this.settings.level !== 'parameters') return;
    for (const entry of this.entries) freeStorage(entry.other);
    this.memory?.dispose();
    this.memory = null;
  }

  /** Drops what a failed step has left in the wholes' gradients. */
  forget(): void {
    for (const entry of this.entries) this.wholeOf(entry).grad = null;
    if (this.isShared) forgetCommonTensors(`${this.key} `);
  }

  /** The wholes have no gradients until what this returns is called; then they have those of before. */
  putGradsAside(): () => void {
    const grads = this.entries.map((entry) => {
      const whole = this.wholeOf(entry);
      const grad = unscoped(() => whole.grad);
      whole.grad = null;
      return grad;
    });
    return () => {
      this.entries.forEach((entry, i) => {
        this.wholeOf(entry).grad = grads[i] ?? null;
        grads[i]?.dispose();
      });
    };
  }

  /** Where the memory of the wholes is the same as other ranks': waits until all are through with it. */
  settleShared(): void {
    if (this.isShared && this.settings.level !== 'parameters') this.settings.group.barrier();
  }

  // --- gradients -----------------------------------------------------------------------------------------------------

  /** Begins to sum the gradients of the wholes over the group; null where none is learned. */
  reduce(): UnitReduction | null {
    const learned = this.entries.filter(({ parameter }) => parameter.requiresGrad);
    if (learned.length === 0) return null;
    return noGrad(() => scope(() => this.startReduction(learned)));
  }

  private startReduction(learned: readonly Entry[]): UnitReduction {
    const { group, level } = this.settings;
    const parts = this.pack(learned);
    for (const entry of learned) this.wholeOf(entry).grad = null;
    const length = parts[group.rank]!.numel();
    if (level !== 'optimizer') {
      const work = unscoped(() => group.reduceScatter(parts, { asyncOp: true }));
      return this.reductionOf(learned, work, (result) => result as Tensor);
    }
    const all = unscoped(() => cat(parts));
    const before = total(parts.slice(0, group.rank).map((part) => part.numel()));
    const work = group.allReduce(all, { asyncOp: true });
    return this.reductionOf(learned, work, () => {
      const own = all.narrow(0, before, length);
      all.dispose();
      return own;
    });
  }

  private reductionOf(
    learned: readonly Entry[],
    first: distributed.Work<Tensor | void>,
    resultOf: (given: Tensor | void) => Tensor,
  ): UnitReduction {
    const { replicas } = this.settings;
    let own: Tensor | null = null;
    let second: distributed.Work | null = null;
    const advance = (): void => {
      if (own !== null) return;
      own = unscoped(() => resultOf(first.wait()));
      if (replicas !== null) second = replicas.allReduce(own, { asyncOp: true });
    };
    return {
      unit: this,
      advance,
      get isReady() {
        return own === null && first.isCompleted();
      },
      finish: () => {
        advance();
        second?.wait();
        noGrad(() => scope(() => this.give(learned, own!)));
        own?.dispose();
      },
    };
  }

  /** For every rank one row of numbers: for each parameter whether there is a gradient, then that rank's parts of them. */
  private pack(learned: readonly Entry[]): Tensor[] {
    const { group, reduceDtype } = this.settings;
    const dtype = this.wholeDtype;
    const { device } = this;
    const grads = learned.map((entry) => this.wholeOf(entry).grad);
    const present = tensor(
      grads.map((grad) => (grad === null ? 0 : 1)),
      { dtype, device },
    );
    const rows: Tensor[][] = Array.from({ length: group.size }, () => [present]);
    learned.forEach(({ shard, sizes }, i) => {
      const grad = grads[i] ?? null;
      if (grad === null) sizes.forEach((size, rank) => rows[rank]?.push(zeros([size], { dtype, device })));
      else if (shard.dim === 0)
        (callOp('aten::split_with_sizes', [grad.reshape([-1]), sizes, 0]) as Tensor[]).forEach((part, rank) =>
          rows[rank]?.push(part),
        );
      else
        sizes.forEach((_, rank) => {
          const { offset, length } = partOf(shard.globalShape[shard.dim]!, rank, group.size);
          rows[rank]?.push(grad.narrow(shard.dim, offset, length).reshape([-1]));
        });
    });
    const lengths = rows.map((row) => total(row.map((part) => part.numel())));
    const longest = Math.max(...lengths);
    return rows.map((row, rank) => {
      const missing = longest - lengths[rank]!;
      if (missing > 0) row.push(zeros([missing], { dtype, device }));
      const packed = cat(row);
      return reduceDtype === null || reduceDtype === dtype ? packed : packed.to(reduceDtype);
    });
  }

  /** Gives the shards their gradients, added to those that are there; none where no rank has one. */
  private give(learned: readonly Entry[], own: Tensor): void {
    const { rank } = this.settings.group;
    const sizes = learned.map((entry) => entry.sizes[rank]!);
    const rest = own.numel() - learned.length - total(sizes);
    const [present, ...parts] = callOp('aten::split_with_sizes', [own, [learned.length, ...sizes, rest], 0]) as [
      Tensor,
      ...Tensor[],
    ];
    const isThere = present.toArray() as number[];
    learned.forEach((entry, i) => {
      if (isThere[i] === 0) return;
      const shard = this.shardOf(entry);
      const part = parts[i]!.view(shard.shape);
      const grad = part.dtype === shard.dtype ? part : part.to(shard.dtype);
      const before = shard.grad;
      shard.grad = before === null ? grad : before.add(grad);
    });
  }

  // --- inside --------------------------------------------------------------------------------------------------------

  private wholeOf({ parameter, other }: Entry): nn.Parameter {
    return this.isSwapped ? parameter : other;
  }

  private shardOf({ parameter, other }: Entry): nn.Parameter {
    return this.isSwapped ? other : parameter;
  }

  private swap(toWhole: boolean): void {
    if (this.isSwapped === toWhole) return;
    this.isSwapped = toWhole;
    for (const { parameter, other } of this.entries) {
      other.requiresGrad = parameter.requiresGrad;
      parameter.swap(other);
    }
  }

  /** Cuts a parameter: it becomes its shard. */
  private enter({ parameter, name, dim }: Cut): Entry {
    const { group, replicas, level } = this.settings;
    const globalShape = parameter.shape;
    const extent = globalShape[dim]!;
    const { offset, length } = partOf(extent, group.rank, group.size);
    const shard: Shard = { globalShape, dim, offset, length, group, replicas };
    const inner = extent === 0 ? 0 : parameter.numel() / extent;
    const ranks = Array.from({ length: group.size }, (_, rank) => partOf(extent, rank, group.size));
    const [whole, parts] = unscoped(() => {
      const base = empty(globalShape, { dtype: this.wholeDtype, device: this.device });
      // The same storage with a count of changes of its own: gathering is no change that autograd must know of.
      const alias = empty([0], { dtype: this.wholeDtype, device: this.device }).setData(base);
      const flat = dim === 0 ? alias.view([-1]) : alias;
      const scale = dim === 0 ? inner : 1;
      return [
        new nn.Parameter(base, { requiresGrad: parameter.requiresGrad }),
        ranks.map((part) => flat.narrow(dim, part.offset * scale, part.length * scale)),
      ] as const;
    });
    const own = parameter.detach().narrow(dim, offset, length);
    const inPlace = level !== 'parameters' && dim === 0 && this.wholeDtype === this.dtype;
    parameter.become(own.clone());
    freeStorage(whole);
    setShard(parameter, shard);
    return { parameter, other: whole, name, shard, parts, sizes: ranks.map((part) => part.length * inner), inPlace };
  }

  /** Gives the wholes memory that stays; shards become part of it. */
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

  /** Puts other memory under the wholes, and under the shards that are part of them, which optimizers know. */
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

  /** Puts memory under the wholes. */
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
      lendStorage(this.wholeOf(entry), pieces[i]!.view(entry.shard.globalShape));
    });
  }

  /** Threads: every rank writes its shard into the memory that all of them see. */
  private writeShared(): void {
    const { group } = this.settings;
    this.allocate();
    const copied = this.entries.filter(({ inPlace }) => !inPlace);
    if (copied.length > 0)
      callOp('aten::_foreach_copy_', [
        copied.map(({ parts }) => parts[group.rank]!),
        copied.map((entry) => flatIf(this.shardOf(entry).detach(), entry.shard.dim === 0)),
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
    const rows = this.entries.map((entry) => this.shardOf(entry).detach().reshape([-1]));
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

function flatIf(value: Tensor, isFlat: boolean): Tensor {
  return isFlat ? value.reshape([-1]) : value;
}

function total(numbers: readonly number[]): number {
  return numbers.reduce((sum, value) => sum + value, 0);
}
