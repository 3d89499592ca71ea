/** @file Rprop. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { Tensor } from '../tensor/tensor.ts';
import { Optimizer } from './optimizer.ts';
import type { BaseOptions, Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Rprop. */
export interface RpropOptions extends BaseOptions {
  /** By what a step shrinks after a change of sign, and grows without one. */
  etas: readonly number[];
  /** The least and the largest step. */
  stepSizes: readonly number[];
}

const kind: Kind<RpropOptions> = {
  name: 'Rprop',
  defaults: { lr: 1e-2, etas: [0.5, 1.2], stepSizes: [1e-6, 50], maximize: false },
  step: (bucket, numbers, rate) => native.rpropStep(bucket, numbers, rate),
  check({ etas, stepSizes }) {
    const [shrink = 0, grow = 0] = etas;
    if (etas.length !== 2 || !(shrink > 0 && shrink < 1 && grow > 1))
      throw new TorchError(
        'BAD_ARGUMENT',
        `Rprop: etas are a number between 0 and 1 and one above 1, got ${JSON.stringify(etas)}`,
      );
    if (stepSizes.length !== 2 || !(stepSizes[0]! <= stepSizes[1]!))
      throw new TorchError(
        'BAD_ARGUMENT',
        `Rprop: stepSizes are the least and the largest step, got ${JSON.stringify(stepSizes)}`,
      );
  },
  slots: ({ lr }) => [
    { name: 'step', kind: 'number' },
    { name: 'prev', kind: 'like' },
    { name: 'step_size', kind: 'like', begin: lr instanceof Tensor ? lr.item() : lr },
  ],
  slotKey: ({ lr }) => (lr instanceof Tensor ? lr.version : lr), // state begins with the rate of a parameter's first step
  numbers: stepNumbers.rprop,
};

/** Only the signs of gradients count; for full batches. @example new Rprop(model.parameters(), { lr: 0.01 }) */
export class Rprop extends Optimizer<RpropOptions> {
  constructor(params: ParamsInput<RpropOptions>, options?: GivenOptions<RpropOptions>) {
    super(kind, params, options);
  }
}
