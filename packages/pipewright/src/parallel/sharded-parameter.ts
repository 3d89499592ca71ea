/**
 * @file A parameter that is sharded. It is two tensors: this rank's shard, which is what the module and its optimizer have between
 * steps, and the whole, which takes its place while the stage computes. The Parameter object stays the same, so that modules,
 * graphs and optimizers that hold it always see the right one.
 */
import { empty, freeStorage, nn, type Tensor, unscoped } from '@pipewright/torch';
import { partOf, type Shard, setShard } from './shard.ts';
import type { UnitSettings } from './unit-settings.ts';

/** A parameter of which each rank has a shard, and all of it while it is unsharded. */
export class ShardedParameter {
  /** What the module has: the shard between steps, the whole while it is unsharded. */
  readonly parameter: nn.Parameter;
  readonly name: string;
  /** The parts of the whole by rank, as views on its storage; each is one row of numbers where that is possible. */
  readonly parts: readonly Tensor[];
  /** Elements of each rank's part. */
  readonly sizes: readonly number[];
  /** Whether the shard is the part of the whole itself. */
  readonly inPlace: boolean;
  /** The one that the module does not have at the moment. */
  private readonly other: nn.Parameter;
  private cut: Shard;
  private isSwapped = false;

  /** Cuts a parameter: it becomes its shard, and the whole has no memory. */
  constructor({ parameter, name, dim }: Cut, { group, replicas, level, paramDtype }: UnitSettings) {
    const { device } = parameter;
    const dtype = paramDtype ?? parameter.dtype;
    const globalShape = parameter.shape;
    const extent = globalShape[dim]!;
    const { offset, length } = partOf(extent, group.rank, group.size);
    const inner = extent === 0 ? 0 : parameter.numel() / extent;
    const ranks = Array.from({ length: group.size }, (_, rank) => partOf(extent, rank, group.size));
    const [whole, parts] = unscoped(() => {
      const base = empty(globalShape, { dtype, device });
      // The same storage with a count of changes of its own: gathering is no change that autograd must know of.
      const alias = empty([0], { dtype, device }).setData(base);
      const flat = dim === 0 ? alias.view([-1]) : alias;
      const scale = dim === 0 ? inner : 1;
      return [
        new nn.Parameter(base, { requiresGrad: parameter.requiresGrad }),
        ranks.map((part) => flat.narrow(dim, part.offset * scale, part.length * scale)),
      ] as const;
    });
    const own = parameter.detach().narrow(dim, offset, length);
    this.inPlace = level !== 'parameters' && dim === 0 && dtype === parameter.dtype;
    parameter.become(own.clone());
    freeStorage(whole);
    this.parameter = parameter;
    this.other = whole;
    this.name = name;
    this.parts = parts;
    this.sizes = ranks.map((part) => part.length * inner);
    this.cut = { globalShape, dim, offset, length, group, replicas };
    setShard(parameter, this.cut);
  }

  /** Where the shard lies in the whole. */
  get shard(): Shard {
    return this.cut;
  }

  /** The whole parameter. */
  get whole(): nn.Parameter {
    return this.isSwapped ? this.parameter : this.other;
  }

  /** This rank's part of it. */
  get own(): nn.Parameter {
    return this.isSwapped ? this.other : this.parameter;
  }

  /** Uses groups that replace the earlier ones. */
  follow({ group, replicas }: UnitSettings): void {
    this.cut = { ...this.cut, group, replicas };
    setShard(this.parameter, this.cut);
  }

  /** Puts the whole or the shard into the module. */
  use(form: 'whole' | 'shard'): void {
    if (this.isSwapped === (form === 'whole')) return;
    this.isSwapped = form === 'whole';
    this.other.requiresGrad = this.parameter.requiresGrad;
    this.parameter.swap(this.other);
  }
}

/** A parameter that is to be sharded along a dimension. */
export interface Cut {
  readonly parameter: nn.Parameter;
  readonly name: string;
  readonly dim: number;
}

/** The sum of numbers of elements. */
export function total(sizes: readonly number[]): number {
  return sizes.reduce((sum, size) => sum + size, 0);
}
