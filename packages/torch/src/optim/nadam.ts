/** @file NAdam. */
import { native } from '../base/addon.ts';
import {
  type BaseOptions,
  checkBetas,
  checkNotNegative,
  type GivenOptions,
  type Kind,
  Optimizer,
  type ParamsInput,
} from './optimizer.ts';

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
  numbers(options, to) {
    to[0] = options.lr as number;
    to[1] = options.betas[0] as number;
    to[2] = options.betas[1] as number;
    to[3] = options.eps;
    to[4] = options.weightDecay;
    to[5] = options.momentumDecay;
    to[6] = Number(options.decoupledWeightDecay);
    to[7] = Number(options.maximize);
  },
};

/** Adam with Nesterov's momentum. */
export class NAdam extends Optimizer<NAdamOptions> {
  constructor(params: ParamsInput<NAdamOptions>, options?: GivenOptions<NAdamOptions>) {
    super(kind, params, options);
  }
}
