/** @file Adafactor. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Adafactor. */
export interface AdafactorOptions extends BaseOptions {
  /** Power of the step number by which the averages of squares forget; at most 0. */
  beta2Decay: number;
  /** The least variance (null: the smallest the element type tells from 1) and the least scale of a parameter. */
  eps: readonly [number | null, number];
  /** The largest root mean square of an update; at least 1. */
  d: number;
  weightDecay: number;
}

const kind: Kind<AdafactorOptions> = {
  name: 'Adafactor',
  defaults: { lr: 1e-2, beta2Decay: -0.8, eps: [null, 1e-3], d: 1, weightDecay: 0, maximize: false },
  step: (bucket, numbers, rate) => native.adafactorStep(bucket, numbers, rate),
  needsWhole: true,
  check(options) {
    checkNotNegative('Adafactor', options, ['weightDecay']);
    const { beta2Decay, eps, d } = options;
    if (!(beta2Decay <= 0))
      throw new TorchError('BAD_ARGUMENT', `Adafactor: beta2Decay must be at most 0, got ${beta2Decay}`);
    if (!(d >= 1)) throw new TorchError('BAD_ARGUMENT', `Adafactor: d must be at least 1, got ${d}`);
    const isFine = (value: number | null | undefined): boolean => typeof value === 'number' && value >= 0;
    if (!Array.isArray(eps) || eps.length !== 2 || !(eps[0] === null || isFine(eps[0])) || !isFine(eps[1]))
      throw new TorchError(
        'BAD_ARGUMENT',
        `Adafactor: eps is [least variance or null, least scale], both at least 0, got ${JSON.stringify(eps)}`,
      );
  },
  checkParameter(parameter) {
    if (parameter.isComplex())
      throw new TorchError('BAD_ARGUMENT', `Adafactor: parameters are real, got one of ${parameter.dtype.name}`);
  },
  slots: () => [
    { name: 'step', kind: 'number' },
    { name: 'row_var', kind: 'rows' },
    { name: 'col_var', kind: 'columns' },
    { name: 'variance', kind: 'likeVector' },
  ],
  numbers: stepNumbers.adafactor,
};

/** Adam's idea with the squares of a matrix kept per row and per column: little memory. @example new Adafactor(model.parameters()) */
export class Adafactor extends Optimizer<AdafactorOptions> {
  constructor(params: ParamsInput<AdafactorOptions>, options?: GivenOptions<AdafactorOptions>) {
    super(kind, params, options);
  }
}
