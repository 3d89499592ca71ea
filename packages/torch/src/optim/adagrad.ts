/** @file Adagrad. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Adagrad. */
export interface AdagradOptions extends BaseOptions {
  lrDecay: number;
  weightDecay: number;
  initialAccumulatorValue: number;
  eps: number;
}

const kind: Kind<AdagradOptions> = {
  name: 'Adagrad',
  defaults: { lr: 1e-2, lrDecay: 0, weightDecay: 0, initialAccumulatorValue: 0, eps: 1e-10, maximize: false },
  step: (bucket, numbers, rate) => native.adagradStep(bucket, numbers, rate),
  check: (options) =>
    checkNotNegative('Adagrad', options, ['lrDecay', 'weightDecay', 'initialAccumulatorValue', 'eps']),
  slots: (options) => [
    { name: 'step', kind: 'number' },
    { name: 'sum', kind: 'like', begin: options.initialAccumulatorValue },
  ],
  numbers: stepNumbers.adagrad,
};

/** Steps that shrink with the squares of all gradients so far. */
export class Adagrad extends Optimizer<AdagradOptions> {
  constructor(params: ParamsInput<AdagradOptions>, options?: GivenOptions<AdagradOptions>) {
    super(kind, params, options);
  }
}
