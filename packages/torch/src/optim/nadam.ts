/** @file NAdam. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkBetas, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of NAdam. */
export interface NAdamOptions extends BaseOptions {
  betas: readonly number[];
  eps: number;
  weightDecay: number;
  momentumDecay: number;
  /** Weight decay acts on the weights rather than on the gradients. */
  decoupledWeightDecay: boolean;
}

const kind: Kind<NAdamOptions> = {
  name: 'NAdam',
  defaults: {
    lr: 2e-3,
    betas: [0.9, 0.999],
    eps: 1e-8,
    weightDecay: 0,
    momentumDecay: 4e-3,
    decoupledWeightDecay: false,
    maximize: false,
  },
  step: (bucket, numbers, rate) => native.nadamStep(bucket, numbers, rate),
  check(options) {
    checkNotNegative('NAdam', options, ['eps', 'weightDecay', 'momentumDecay']);
    checkBetas('NAdam', options.betas);
  },
  slots: () => [
    { name: 'step', kind: 'number' },
    { name: 'mu_product', kind: 'number', begin: 1 },
    { name: 'exp_avg', kind: 'like' },
    { name: 'exp_avg_sq', kind: 'like' },
  ],
  numbers: stepNumbers.nadam,
};

/** Adam with Nesterov's momentum. */
export class NAdam extends Optimizer<NAdamOptions> {
  constructor(params: ParamsInput<NAdamOptions>, options?: GivenOptions<NAdamOptions>) {
    super(kind, params, options);
  }
}
