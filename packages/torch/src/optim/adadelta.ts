/** @file Adadelta. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Adadelta. */
export interface AdadeltaOptions extends BaseOptions {
  /** How slowly the averages of squares forget. */
  rho: number;
  eps: number;
  weightDecay: number;
}

const kind: Kind<AdadeltaOptions> = {
  name: 'Adadelta',
  defaults: { lr: 1, rho: 0.9, eps: 1e-6, weightDecay: 0, maximize: false },
  step: (bucket, numbers, rate) => native.adadeltaStep(bucket, numbers, rate),
  check(options) {
    checkNotNegative('Adadelta', options, ['eps', 'weightDecay']);
    if (!(options.rho >= 0 && options.rho <= 1))
      throw new TorchError('BAD_ARGUMENT', `Adadelta: rho must be between 0 and 1, got ${options.rho}`);
  },
  slots: () => [
    { name: 'step', kind: 'number' },
    { name: 'square_avg', kind: 'like' },
    { name: 'acc_delta', kind: 'like' },
  ],
  numbers: stepNumbers.adadelta,
};

/** Steps in the size of earlier ones, so that hardly a rate is needed. @example new Adadelta(model.parameters()) */
export class Adadelta extends Optimizer<AdadeltaOptions> {
  constructor(params: ParamsInput<AdadeltaOptions>, options?: GivenOptions<AdadeltaOptions>) {
    super(kind, params, options);
  }
}
