/** @file Adamax. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkBetas, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Adamax. */
export interface AdamaxOptions extends BaseOptions {
  betas: readonly number[];
  eps: number;
  weightDecay: number;
}

const kind: Kind<AdamaxOptions> = {
  name: 'Adamax',
  defaults: { lr: 2e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, maximize: false },
  step: (bucket, numbers, rate) => native.adamaxStep(bucket, numbers, rate),
  check(options) {
    checkNotNegative('Adamax', options, ['eps', 'weightDecay']);
    checkBetas('Adamax', options.betas);
  },
  slots: () => [
    { name: 'step', kind: 'number' },
    { name: 'exp_avg', kind: 'like' },
    { name: 'exp_inf', kind: 'like' },
  ],
  numbers: stepNumbers.adamax,
};

/** Adam with the largest gradient in place of the mean square. */
export class Adamax extends Optimizer<AdamaxOptions> {
  constructor(params: ParamsInput<AdamaxOptions>, options?: GivenOptions<AdamaxOptions>) {
    super(kind, params, options);
  }
}
