/** @file Adam and AdamW. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkBetas, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Adam. */
export interface AdamOptions extends BaseOptions {
  betas: readonly number[];
  eps: number;
  weightDecay: number;
  amsgrad: boolean;
  /** Weight decay acts on the weights (as in AdamW) rather than on the gradients. */
  decoupledWeightDecay: boolean;
}

/** Options of AdamW. */
export type AdamWOptions = Omit<AdamOptions, 'decoupledWeightDecay'>;

function kindOf<O extends AdamWOptions>(name: string, defaults: O, isDecoupled: (options: O) => boolean): Kind<O> {
  return {
    name,
    defaults,
    step: (bucket, numbers, rate) => native.adamStep(bucket, numbers, rate),
    check(options) {
      checkNotNegative(name, options, ['eps', 'weightDecay']);
      checkBetas(name, options.betas);
    },
    slots: (options) => [
      { name: 'step', kind: 'deviceNumber' },
      { name: 'exp_avg', kind: 'like' },
      { name: 'exp_avg_sq', kind: 'like' },
      ...(options.amsgrad ? [{ name: 'max_exp_avg_sq', kind: 'like' } as const] : []),
    ],
    slotKey: (options) => Number(options.amsgrad),
    numbers: stepNumbers.adam,
    numberOf: (name, options) => (name === 'decoupledWeightDecay' ? Number(isDecoupled(options)) : undefined),
  };
}

const common = { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, amsgrad: false, maximize: false };
const adam = kindOf<AdamOptions>(
  'Adam',
  { ...common, weightDecay: 0, decoupledWeightDecay: false },
  (options) => options.decoupledWeightDecay,
);
const adamW = kindOf<AdamWOptions>('AdamW', { ...common, weightDecay: 1e-2 }, () => true);

/** Adam. @example new Adam(model.parameters(), { lr: 1e-3 }) */
export class Adam extends Optimizer<AdamOptions> {
  constructor(params: ParamsInput<AdamOptions>, options?: GivenOptions<AdamOptions>) {
    super(adam, params, options);
  }
}

/** Adam with decoupled weight decay. @example new AdamW(model.parameters(), { lr: 3e-4, weightDecay: 0.1 }) */
export class AdamW extends Optimizer<AdamWOptions> {
  constructor(params: ParamsInput<AdamWOptions>, options?: GivenOptions<AdamWOptions>) {
    super(adamW, params, options);
  }
}
