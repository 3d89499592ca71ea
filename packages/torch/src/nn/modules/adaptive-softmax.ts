/** @file Softmax over very many classes: frequent ones in a short list, the rest in clusters with ever smaller layers. */
import { checkGiven, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { cat, logSoftmax } from '../../generated/functions.ts';
import '../../generated/methods.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { type Real, toNumber } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { Module } from '../module.ts';
import { ModuleList, Sequential } from './containers.ts';
import { Linear } from './linear.ts';

/** What AdaptiveLogSoftmaxWithLoss can be told. */
export interface AdaptiveLogSoftmaxOptions extends FactoryOptions {
  /** Each cluster's layer is narrower by this factor than the one before. */
  divValue?: Real | undefined;
  headBias?: boolean | undefined;
}

/**
 * Log-probabilities of the targets and their mean loss; classes are sorted by frequency, the most frequent first.
 *
 * @example const [logProbs, loss] = new AdaptiveLogSoftmaxWithLoss(512, 100_000, [1000, 10_000]).forward(x, target)
 */
export class AdaptiveLogSoftmaxWithLoss extends Module {
  readonly inFeatures: number;
  readonly nClasses: number;
  readonly cutoffs: readonly number[];
  head: Linear;
  tail: ModuleList<Sequential>;

  constructor(inFeatures: number, nClasses: number, cutoffs: readonly number[], options?: AdaptiveLogSoftmaxOptions) {
    super();
    const given = readOptions('AdaptiveLogSoftmaxWithLoss', options, { divValue: 4, headBias: false, ...factory });
    checkGiven(
      'AdaptiveLogSoftmaxWithLoss',
      Array.isArray(cutoffs),
      ['cutoffs', cutoffs],
      'an array of rising whole numbers',
    );
    checkWhole('AdaptiveLogSoftmaxWithLoss: nClasses', nClasses, 1);
    const isRising = cutoffs.every((cut, i) => Number.isInteger(cut) && cut > (i === 0 ? 0 : cutoffs[i - 1]!));
    if (cutoffs.length === 0 || !isRising || cutoffs.at(-1)! > nClasses - 1)
      throw new TorchError(
        'BAD_ARGUMENT',
        `AdaptiveLogSoftmaxWithLoss: cutoffs are rising whole numbers between 1 and ${nClasses - 1} (classes - 1), got [${cutoffs.map(show).join(', ')}]`,
      );
    const type = { dtype: given.dtype, device: given.device };
    this.inFeatures = inFeatures;
    this.nClasses = nClasses;
    this.cutoffs = [...cutoffs, nClasses];
    const clusters = cutoffs.length;
    this.head = new Linear(inFeatures, cutoffs[0]! + clusters, { bias: given.headBias, ...type });
    const tail: Sequential[] = [];
    for (let i = 0; i < clusters; i++) {
      const narrow = Math.floor(inFeatures / toNumber(given.divValue) ** (i + 1));
      const size = this.cutoffs[i + 1]! - this.cutoffs[i]!;
      const plain = { bias: false, ...type };
      tail.push(new Sequential(new Linear(inFeatures, narrow, plain), new Linear(narrow, size, plain)));
    }
    this.tail = new ModuleList(tail);
  }

  /** Draws new initial values. */
  resetParameters(): void {
    for (const module of this.modules()) if (module instanceof Linear) module.resetParameters();
  }

  forward(input: Tensor, target: Tensor): [output: Tensor, loss: Tensor] {
    const [rows, wanted] = this.batched(input, target);
    const head = logSoftmax(this.head.forward(rows), 1);
    const first = this.cutoffs[0]!;
    // In the short list a class is its own score; beyond, it is its cluster's score and its own within the cluster.
    const cluster = this.cutoffs.slice(0, -1).reduce((sum, cut) => sum.add(wanted.ge(cut)), wanted.mul(0));
    const column = wanted
      .lt(first)
      .mul(wanted)
      .add(cluster.gt(0).mul(cluster.add(first - 1)));
    let output = head.gather(1, column.unsqueeze(1)).squeeze(1);
    [...this.tail].forEach((layers, i) => {
      const places = cluster
        .eq(i + 1)
        .nonzero()
        .squeeze(1);
      if (places.numel() === 0) return;
      const within = logSoftmax(layers.forward(rows.indexSelect(0, places)) as Tensor, 1);
      const relative = wanted.indexSelect(0, places).sub(this.cutoffs[i]!);
      output = output.indexAdd(0, places, within.gather(1, relative.unsqueeze(1)).squeeze(1));
    });
    const loss = output.neg().mean();
    return [target.dim() === 0 ? output.squeeze(0) : output, loss];
  }

  /** Log-probabilities of all classes. */
  logProb(input: Tensor): Tensor {
    const first = this.cutoffs[0]!;
    const head = logSoftmax(this.head.forward(input), 1);
    const parts = [...this.tail].map((layers, i) => {
      const within = logSoftmax(layers.forward(input) as Tensor, 1);
      return within.add(head.narrow(1, first + i, 1));
    });
    return cat([head.narrow(1, 0, first), ...parts], 1);
  }

  /** The most probable class of each example; clusters are looked into only where they win. */
  predict(input: Tensor): Tensor {
    const first = this.cutoffs[0]!;
    const best = this.head.forward(input).argmax(1);
    if (!best.ge(first).any().itemValue()) return best;
    return this.logProb(input).argmax(1);
  }

  private batched(input: Tensor, target: Tensor): [Tensor, Tensor] {
    const isSingle = target.dim() === 0;
    if (isSingle ? input.dim() !== 1 : input.dim() !== 2 || target.dim() !== 1 || input.size(0) !== target.size(0))
      throw new TorchError(
        'SHAPE',
        `AdaptiveLogSoftmaxWithLoss: input and target are [N, ${this.inFeatures}] and [N], or [${this.inFeatures}] and [], got [${input.shape.join(', ')}] and [${target.shape.join(', ')}]`,
      );
    if (!target.isMeta && target.numel() > 0) {
      const [least, most] = [target.min().item(), target.max().item()];
      if (least < 0 || most >= this.nClasses)
        throw new TorchError(
          'BAD_ARGUMENT',
          `AdaptiveLogSoftmaxWithLoss: targets must be in the range [0, ${this.nClasses - 1}], got values from ${least} to ${most}`,
        );
    }
    return isSingle ? [input.unsqueeze(0), target.unsqueeze(0)] : [input, target];
  }
}
