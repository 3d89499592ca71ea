/** @file Averaged stochastic gradient descent. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Tensor } from '../tensor/tensor.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of ASGD. */
export interface ASGDOptions extends BaseOptions {
  lambd: number;
  /** Power of the decay of the rate. */
  alpha: number;
  /** The step after which averaging begins. */
  t0: number;
  weightDecay: number;
}

const kind: Kind<ASGDOptions> = {
  name: 'ASGD',
  defaults: { lr: 1e-2, lambd: 1e-4, alpha: 0.75, t0: 1e6, weightDecay: 0, maximize: false },
  step: (bucket, numbers, rate) => native.asgdStep(bucket, numbers, rate),
  check: (options) => checkNotNegative('ASGD', options, ['weightDecay']),
  slots: ({ lr }) => [
    { name: 'step', kind: 'number' },
    { name: 'eta', kind: 'number', begin: lr instanceof Tensor ? lr.item() : lr },
    { name: 'mu', kind: 'number', begin: 1 },
    { name: 'ax', kind: 'like' },
  ],
  slotKey: ({ lr }) => (lr instanceof Tensor ? lr.version : lr), // state begins with the rate of a parameter's first step
  numbers: stepNumbers.asgd,
};

/** SGD that also keeps the average of the weights, `stateOf(parameter).ax`. @example new ASGD(model.parameters(), { t0: 1000 }) */
export class ASGD extends Optimizer<ASGDOptions> {
  constructor(params: ParamsInput<ASGDOptions>, options?: GivenOptions<ASGDOptions>) {
    super(kind, params, options);
  }
}
