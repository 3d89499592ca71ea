/** @file RAdam. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkBetas, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of RAdam. */
export interface RAdamOptions extends BaseOptions {
  betas: readonly number[];
  eps: number;
  weightDecay: number;
  /** Weight decay acts on the weights rather than on the gradients. */
  decoupledWeightDecay: boolean;
}

const kind: Kind<RAdamOptions> = {
  name: 'RAdam',
  defaults: { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, decoupledWeightDecay: false, maximize: false },
  step: (bucket, numbers, rate) => native.radamStep(bucket, numbers, rate),
  check(options) {
    checkNotNegative('RAdam', options, ['eps', 'weightDecay']);
    checkBetas('RAdam', options.betas);
  },
  slots: () => [
    { name: 'step', kind: 'number' },
    { name: 'exp_avg', kind: 'like' },
    { name: 'exp_avg_sq', kind: 'like' },
  ],
  numbers: stepNumbers.radam,
};

/** Adam with its early variance rectified. */
export class RAdam extends Optimizer<RAdamOptions> {
  constructor(params: ParamsInput<RAdamOptions>, options?: GivenOptions<RAdamOptions>) {
    super(kind, params, options);
  }
}
