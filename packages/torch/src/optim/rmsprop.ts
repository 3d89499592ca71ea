/** @file RMSprop. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of RMSprop. */
export interface RMSpropOptions extends BaseOptions {
  alpha: number;
  eps: number;
  weightDecay: number;
  momentum: number;
  centered: boolean;
}

const kind: Kind<RMSpropOptions> = {
  name: 'RMSprop',
  defaults: { lr: 1e-2, alpha: 0.99, eps: 1e-8, weightDecay: 0, momentum: 0, centered: false, maximize: false },
  step: (bucket, numbers, rate) => native.rmspropStep(bucket, numbers, rate),
  check: (options) => checkNotNegative('RMSprop', options, ['alpha', 'eps', 'weightDecay', 'momentum']),
  slots: (options) => [
    { name: 'step', kind: 'number' },
    { name: 'square_avg', kind: 'like' },
    { name: 'momentum_buffer', kind: options.momentum > 0 ? 'like' : 'later' },
    { name: 'grad_avg', kind: options.centered ? 'like' : 'later' },
  ],
  slotKey: (options) => Number(options.momentum > 0) + 2 * Number(options.centered),
  numbers: stepNumbers.rmsprop,
};

/** Steps divided by a running root mean square of the gradients. */
export class RMSprop extends Optimizer<RMSpropOptions> {
  constructor(params: ParamsInput<RMSpropOptions>, options?: GivenOptions<RMSpropOptions>) {
    super(kind, params, options);
  }
}
