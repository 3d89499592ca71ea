/** @file The gradients of a unit on their way: summed over the ranks that hold its parts, then over replicas. */
import {
  callOp,
  cat,
  type DType,
  type distributed,
  noGrad,
  scope,
  type Tensor,
  unscoped,
  zeros,
} from '@pipewright/torch';
import { arePresent, presence } from './buckets.ts';
import { partOf } from './shard.ts';
import { type ShardedParameter, total } from './sharded-parameter.ts';
import type { UnitSettings } from './unit-settings.ts';

/** Gradients of wholes on their way to the shards. */
export class UnitReduction {
  private readonly learned: readonly ShardedParameter[];
  private readonly settings: UnitSettings;
  /** The sum over the group. */
  private readonly first: distributed.Work<Tensor | void>;
  /** Takes this rank's part out of what that gives. */
  private readonly ownOf: (given: Tensor | void) => Tensor;
  /** Whether this rank has a gradient for each parameter. */
  private isWhole = false;
  private own: Tensor | null = null;
  /** The sum over replicas. */
  private second: distributed.Work | null = null;

  /** Takes the gradients of the wholes and begins to sum them over the group. */
  constructor(learned: readonly ShardedParameter[], settings: UnitSettings, wholes: Wholes) {
    this.learned = learned;
    this.settings = settings;
    const { group, level } = settings;
    const parts = this.pack(wholes);
    for (const { whole } of learned) whole.grad = null;
    const length = parts[group.rank]!.numel();
    if (level !== 'optimizer') {
      this.first = unscoped(() => group.reduceScatter(parts, { asyncOp: true }));
      this.ownOf = (given) => given as Tensor;
      return;
    }
    const all = unscoped(() => cat(parts));
    const before = total(parts.slice(0, group.rank).map((part) => part.numel()));
    this.first = group.allReduce(all, { asyncOp: true });
    this.ownOf = () => {
      const own = all.narrow(0, before, length);
      all.dispose();
      return own;
    };
  }

  /** Whether `advance` would not wait. */
  get isReady(): boolean {
    return this.own === null && this.first.isCompleted();
  }

  /** Ends the sum over the group; begins that over replicas. */
  advance(): void {
    if (this.own !== null) return;
    const { replicas } = this.settings;
    const own = unscoped(() => this.ownOf(this.first.wait()));
    this.own = own;
    if (replicas !== null) this.second = replicas.allReduce(own, { asyncOp: true });
  }

  /** Waits for everything and gives the shards their gradients. */
  finish(): void {
    this.advance();
    this.second?.wait();
    noGrad(() => scope(() => this.give(this.own!)));
    this.own?.dispose();
  }

  /** For every rank one row of numbers: for each parameter whether there is a gradient, then that rank's parts of them. */
  private pack({ dtype, device }: Wholes): Tensor[] {
    const { learned } = this;
    const { group, reduceDtype } = this.settings;
    const grads = learned.map((entry) => entry.whole.grad);
    const { present, isWhole } = presence(grads, { dtype, device });
    this.isWhole = isWhole;
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
  private give(own: Tensor): void {
    const { learned } = this;
    const { rank } = this.settings.group;
    const sizes = learned.map((entry) => entry.sizes[rank]!);
    const rest = own.numel() - learned.length - total(sizes);
    const [present, ...parts] = callOp('aten::split_with_sizes', [own, [learned.length, ...sizes, rest], 0]) as [
      Tensor,
      ...Tensor[],
    ];
    const isThere = arePresent(present, this.isWhole);
    learned.forEach((entry, i) => {
      if (!isThere(i)) return;
      const shard = entry.own;
      const part = parts[i]!.view(shard.shape);
      const grad = part.dtype === shard.dtype ? part : part.to(shard.dtype);
      const before = shard.grad;
      shard.grad = before === null ? grad : before.add(grad);
    });
  }
}

/** Of what type and where the wholes are. */
interface Wholes {
  readonly dtype: DType;
  readonly device: Tensor['device'];
}
