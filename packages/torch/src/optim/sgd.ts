/** @file Stochastic gradient descent. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of SGD. */
export interface SGDOptions extends BaseOptions {
  momentum: number;
  dampening: number;
  weightDecay: number;
  nesterov: boolean;
}

const kind: Kind<SGDOptions> = {
  name: 'SGD',
  defaults: { lr: 1e-3, momentum: 0, dampening: 0, weightDecay: 0, nesterov: false, maximize: false },
  step: (bucket, numbers, rate) => native.sgdStep(bucket, numbers, rate),
  check(options) {
    checkNotNegative('SGD', options, ['momentum', 'weightDecay']);
    if (options.nesterov && (options.momentum <= 0 || options.dampening !== 0)) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `SGD: nesterov needs a momentum above 0 and no dampening, got momentum ${options.momentum} and dampening ${options.dampening}`,
      );
    }
  },
  slots: () => [{ name: 'momentum_buffer', kind: 'later' }],
  numbers: stepNumbers.sgd,
};

/** Stochastic gradient descent, with momentum if asked for. @example new SGD(model.parameters(), { lr: 0.1, momentum: 0.9 }) */
export class SGD extends Optimizer<SGDOptions> {
  constructor(params: ParamsInput<SGDOptions>, options?: GivenOptions<SGDOptions>) {
    super(kind, params, options);
  }
}
