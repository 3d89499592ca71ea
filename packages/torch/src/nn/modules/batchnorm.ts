/** @file Normalisation of channels with running statistics: BatchNorm and InstanceNorm. */
import { ones, scalarTensor, zeros } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { noGrad } from '../../autograd/modes.ts';
import { checkObject, checkText } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { floatText, type Real, repr } from '../../base/text.ts';
import { getDefaultDtype, int64 } from '../../tensor/dtype.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { batchNorm, instanceNorm } from '../functional/normalization.ts';
import { Module } from '../module.ts';
import { Buffer, emptyParameter, type Parameter, take } from '../parameter.ts';
import { resetAffine } from './normalization.ts';

/** What normalisation with running statistics can be told. */
export interface RunningNormOptions extends FactoryOptions {
  eps?: Real | undefined;
  /** Weight of a new batch in the running statistics; null for a plain average over all. */
  momentum?: Real | null | undefined;
  affine?: boolean | undefined;
  bias?: boolean | undefined;
  trackRunningStats?: boolean | undefined;
}

interface Settings {
  readonly numFeatures: number;
  readonly options: RunningNormOptions | undefined;
  /** Whether weights and statistics are there by default. */
  readonly usual: boolean;
}

/** The base of normalizations that may keep statistics. */
export abstract class RunningNorm extends Module {
  readonly numFeatures: number;
  readonly eps: number;
  readonly momentum: number | null;
  readonly affine: boolean;
  readonly trackRunningStats: boolean;
  weight: Parameter | null;
  bias: Parameter | null;
  runningMean: Buffer | null;
  runningVar: Buffer | null;
  numBatchesTracked: Buffer | null;

  constructor(where: string, settings: Settings) {
    super();
    checkText('RunningNorm', 'the first argument', where);
    checkObject(where, 'the settings', settings);
    const { numFeatures, options, usual } = settings;
    checkWhole(`${where}: numFeatures`, numFeatures);
    const given = readOptions(where, options, {
      eps: 1e-5,
      momentum: 0.1,
      affine: usual,
      bias: true,
      trackRunningStats: usual,
      ...factory,
    });
    this.numFeatures = numFeatures;
    this.eps = given.eps;
    this.momentum = given.momentum as number | null;
    this.affine = given.affine;
    this.trackRunningStats = given.trackRunningStats;
    const type = { dtype: given.dtype ?? getDefaultDtype(), device: given.device ?? null };
    const track = (make: () => Tensor): Buffer | null =>
      given.trackRunningStats ? take(make(), (data) => new Buffer(data)) : null;
    this.weight = given.affine ? emptyParameter([numFeatures], given) : null;
    this.bias = given.affine && given.bias ? emptyParameter([numFeatures], given) : null;
    this.runningMean = track(() => zeros([numFeatures], type));
    this.runningVar = track(() => ones([numFeatures], type));
    this.numBatchesTracked = track(() => scalarTensor(0, { dtype: int64, device: type.device }));
    resetAffine(this.weight, this.bias);
  }

  /** Weight one, bias zero, statistics as at the beginning. */
  resetParameters(): void {
    this.resetRunningStats();
    resetAffine(this.weight, this.bias);
  }

  /** Forgets the statistics. */
  resetRunningStats(): void {
    this.runningMean?.zero_();
    this.runningVar?.fill_(1);
    this.numBatchesTracked?.zero_();
  }

  /** Counts the batch and says how much it weighs in the running statistics. */
  protected countBatch(): number {
    const counter = this.numBatchesTracked;
    if (counter === null) return this.momentum ?? 0;
    noGrad(() => counter.add_(1));
    if (this.momentum !== null) return this.momentum;
    return counter.isMeta ? 0 : 1 / counter.item(); // without memory there is nothing to weigh
  }

  protected checkDims(input: Tensor, wanted: readonly number[]): number {
    const dims = input.dim();
    if (!wanted.includes(dims))
      throw new TorchError(
        'SHAPE',
        `${this.getName()}: the input must have ${wanted.join(' or ')} dimensions, this one has ${dims}`,
      );
    return dims;
  }

  override extraRepr(): string {
    const momentum = this.momentum === null ? 'None' : floatText(this.momentum);
    return `${this.numFeatures}, eps=${floatText(this.eps)}, momentum=${momentum}, affine=${repr(this.affine)}, bias=${repr(this.bias !== null)}, track_running_stats=${repr(this.trackRunningStats)}`;
  }
}

abstract class BatchNorm extends RunningNorm {
  protected abstract readonly dims: readonly number[];

  forward(input: Tensor): Tensor {
    this.checkDims(input, this.dims);
    const keepsStatistics = !this.training || this.trackRunningStats;
    return batchNorm(input, {
      runningMean: keepsStatistics ? this.runningMean : null,
      runningVar: keepsStatistics ? this.runningVar : null,
      weight: this.weight,
      bias: this.bias,
      training: this.training || this.runningMean === null,
      momentum: this.training && this.trackRunningStats ? this.countBatch() : (this.momentum ?? 0),
      eps: this.eps,
    });
  }
}

/** Normalises features, or channels of sequences, over the batch. @example new BatchNorm1d(16) */
export class BatchNorm1d extends BatchNorm {
  protected readonly dims: readonly number[] = [2, 3];

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('BatchNorm1d', { numFeatures, options, usual: true });
  }
}

/** Normalises channels of images over the batch. */
export class BatchNorm2d extends BatchNorm {
  protected readonly dims: readonly number[] = [4];

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('BatchNorm2d', { numFeatures, options, usual: true });
  }
}

/** Normalises channels of volumes over the batch. */
export class BatchNorm3d extends BatchNorm {
  protected readonly dims: readonly number[] = [5];

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('BatchNorm3d', { numFeatures, options, usual: true });
  }
}

abstract class InstanceNorm extends RunningNorm {
  /** Number of dimensions of one example. */
  protected abstract readonly single: number;

  forward(input: Tensor): Tensor {
    const { single } = this;
    const isSingle = this.checkDims(input, [single, single + 1]) === single;
    const channels = input.size(-single);
    if (channels !== this.numFeatures && this.affine) {
      throw new TorchError(
        'SHAPE',
        `${this.getName()}: the input has ${channels} channels, the module was made for ${this.numFeatures}`,
      );
    }
    const output = instanceNorm(isSingle ? input.unsqueeze(0) : input, {
      runningMean: this.runningMean,
      runningVar: this.runningVar,
      weight: this.weight,
      bias: this.bias,
      useInputStats: this.training || !this.trackRunningStats,
      momentum: this.momentum ?? 0,
      eps: this.eps,
    });
    return isSingle ? output.squeeze(0) : output;
  }
}

/** Normalises each channel of each sequence. */
export class InstanceNorm1d extends InstanceNorm {
  protected readonly single: number = 2;

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('InstanceNorm1d', { numFeatures, options, usual: false });
  }
}

/** Normalises each channel of each image. */
export class InstanceNorm2d extends InstanceNorm {
  protected readonly single: number = 3;

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('InstanceNorm2d', { numFeatures, options, usual: false });
  }
}

/** Normalises each channel of each volume. */
export class InstanceNorm3d extends InstanceNorm {
  protected readonly single: number = 4;

  constructor(numFeatures: number, options?: RunningNormOptions) {
    super('InstanceNorm3d', { numFeatures, options, usual: false });
  }
}
