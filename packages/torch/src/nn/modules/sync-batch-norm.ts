/** @file Batch normalization over the batches of all ranks of a process group. */

import { FunctionContext } from '../../autograd/function.ts';
import { noGrad } from '../../autograd/modes.ts';
import { checkGiven } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkGroup } from '../../distributed/group/argument-checks.ts';
import type { ProcessGroup } from '../../distributed/group/process-group.ts';
import { getDefaultGroup, isInitialized } from '../../distributed/init.ts';
import { cat, stack } from '../../generated/functions.ts';
import { float32, float64 } from '../../tensor/dtype.ts';
import '../../generated/methods.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { batchNorm } from '../functional/normalization.ts';
import { Module } from '../module.ts';
import { BatchNorm1d, BatchNorm2d, BatchNorm3d, RunningNorm, type RunningNormOptions } from './batchnorm.ts';
import { ModuleDict, ModuleList, Sequential } from './containers.ts';

/** Options of SyncBatchNorm. */
export interface SyncBatchNormOptions extends RunningNormOptions {
  /** Whose batches count together; the default group where none is given. */
  processGroup?: ProcessGroup | null | undefined;
}

/** Sums over everything but the channels. */
function perChannel(x: Tensor): Tensor {
  return x.sum([0, ...Array.from({ length: x.dim() - 2 }, (_, i) => i + 2)]);
}

/** One number per channel, to be combined with a whole input. */
function spread(values: Tensor, like: Tensor): Tensor {
  return values.reshape([1, -1, ...new Array<number>(like.dim() - 2).fill(1)]);
}

interface Settings {
  readonly group: ProcessGroup;
  readonly eps: number;
  /** Takes the statistics of the whole batch. */
  onStatistics(mean: Tensor, variance: Tensor, count: number): void;
}

/** The normalised input; sums go once through the group in forward and once in backward. */
const normalize = {
  name: 'SyncBatchNorm',
  forward(ctx: FunctionContext, input: Tensor, settings: Settings): Tensor {
    const { group, eps } = settings;
    // Sums of squares cancel: with the mean of each rank at hand, only deviations are squared.
    const wide = input.to(input.dtype === float64 ? float64 : float32);
    const size = wide.numel() / wide.size(1);
    const sum = perChannel(wide);
    const totals = cat([sum, sum.newFull([1], size)]);
    group.allReduce(totals);
    const count = totals.at(-1).item();
    const mean = totals.narrow(0, 0, sum.numel()).div(count);
    const centred = wide.sub(spread(mean, wide));
    const squares = perChannel(centred.mul(centred));
    group.allReduce(squares);
    const variance = squares.div(count);
    settings.onStatistics(mean, variance, count);
    const scale = variance.add(eps).rsqrt();
    ctx['group'] = group;
    ctx['count'] = count;
    const output = centred.mul(spread(scale, wide));
    ctx.saveForBackward(output, scale);
    return output;
  },
  backward(ctx: FunctionContext, grad: Tensor): (Tensor | null)[] {
    const [output, scale] = ctx.savedTensors as [Tensor, Tensor];
    const sums = stack([perChannel(grad), perChannel(grad.mul(output))]);
    (ctx['group'] as ProcessGroup).allReduce(sums);
    const [gradMean, gradDot] = sums.div(ctx['count'] as number).unbind() as [Tensor, Tensor];
    const centred = grad.sub(spread(gradMean, grad)).sub(output.mul(spread(gradDot, grad)));
    return [centred.mul(spread(scale, grad)), null];
  },
};

/**
 * Normalises channels over the batches of all ranks together. Every rank runs it as often, forward and backward.
 *
 * @example const model = SyncBatchNorm.convertSyncBatchnorm(new ResNet())
 */
export class SyncBatchNorm extends RunningNorm {
  readonly processGroup: ProcessGroup | null;

  constructor(numFeatures: number, options?: SyncBatchNormOptions) {
    const { processGroup, ...rest } = options ?? {};
    super('SyncBatchNorm', { numFeatures, options: rest, usual: true });
    this.processGroup = processGroup ?? null;
    if (this.processGroup !== null) checkGroup('SyncBatchNorm', 'processGroup', this.processGroup);
  }

  forward(input: Tensor): Tensor {
    if (input.dim() < 2)
      throw new TorchError('SHAPE', `SyncBatchNorm: the input has at least 2 dimensions, this one has ${input.dim()}`);
    const group = this.processGroup ?? (isInitialized() ? getDefaultGroup() : null);
    const usesBatch = this.training || this.runningMean === null;
    if (group === null || group.size === 1 || !usesBatch) return this.alone(input, usesBatch);
    const normal = FunctionContext.run(normalize, [
      input,
      {
        group,
        eps: this.eps,
        onStatistics: (mean: Tensor, variance: Tensor, count: number) => this.remember(mean, variance, count),
      } satisfies Settings,
    ]).to(input.dtype);
    const scaled = this.weight === null ? normal : normal.mul(spread(this.weight, normal));
    return this.bias === null ? scaled : scaled.add(spread(this.bias, normal));
  }

  private alone(input: Tensor, usesBatch: boolean): Tensor {
    const keeps = !this.training || this.trackRunningStats;
    return batchNorm(input, {
      runningMean: keeps ? this.runningMean : null,
      runningVar: keeps ? this.runningVar : null,
      weight: this.weight,
      bias: this.bias,
      training: usesBatch,
      momentum: this.training && this.trackRunningStats ? this.countBatch() : (this.momentum ?? 0),
      eps: this.eps,
    });
  }

  /** Moves the running statistics; the variance is the unbiased one. */
  private remember(mean: Tensor, variance: Tensor, count: number): void {
    const { runningMean, runningVar } = this;
    if (!this.training || runningMean === null || runningVar === null) return;
    const share = this.countBatch();
    noGrad(() => {
      runningMean.mul_(1 - share).add_(mean.to(runningMean.dtype), { alpha: share });
      const unbiased = variance.mul(count / Math.max(count - 1, 1));
      runningVar.mul_(1 - share).add_(unbiased.to(runningVar.dtype), { alpha: share });
    });
  }

  /** The module with every batch norm inside replaced by one over the group; parameters and statistics are shared. */
  static convertSyncBatchnorm<M extends Module>(module: M, processGroup?: ProcessGroup | null): M | SyncBatchNorm {
    checkGiven('convertSyncBatchnorm', module instanceof Module, ['the argument', module], 'a module');
    if (module instanceof BatchNorm1d || module instanceof BatchNorm2d || module instanceof BatchNorm3d) {
      const { numFeatures, eps, momentum, affine, trackRunningStats } = module;
      const bias = module.bias !== null;
      const made = new SyncBatchNorm(numFeatures, { eps, momentum, affine, bias, trackRunningStats, processGroup });
      for (const name of ['weight', 'bias', 'runningMean', 'runningVar', 'numBatchesTracked'] as const) {
        made[name]?.dispose();
        Object.assign(made, { [name]: module[name] });
      }
      return made.train(module.training);
    }
    const convert = (child: Module): Module => SyncBatchNorm.convertSyncBatchnorm(child, processGroup);
    if (module instanceof Sequential || module instanceof ModuleList) {
      [...module].forEach((child, i) => module.set(i, convert(child)));
    } else if (module instanceof ModuleDict) {
      for (const [key, child] of module.entries()) module.set(key, convert(child));
    }
    for (const [field, child] of Object.entries(module)) {
      if (child instanceof Module) Object.assign(module, { [field]: convert(child) });
    }
    return module;
  }
}
