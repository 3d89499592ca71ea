/** @file Muon. */
import { native } from '../addon/addon.ts';
import { stepNumbers } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { Optimizer } from './optimizer.ts';
import { type BaseOptions, checkNotNegative, type Kind } from './optimizer-kind.ts';
import type { GivenOptions, ParamsInput } from './param-group.ts';

/** Options of Muon. */
export interface MuonOptions extends BaseOptions {
  weightDecay: number;
  momentum: number;
  nesterov: boolean;
  /** Of the polynomial that makes an update orthogonal. */
  nsCoefficients: readonly [number, number, number];
  eps: number;
  /** How often the polynomial is applied; less than 100. */
  nsSteps: number;
  /** How the rate follows the shape: `original` (also null) or `match_rms_adamw`, for rates found with AdamW. */
  adjustLrFn: 'original' | 'match_rms_adamw' | null;
}

const kind: Kind<MuonOptions> = {
  name: 'Muon',
  defaults: {
    lr: 1e-3,
    weightDecay: 0.1,
    momentum: 0.95,
    nesterov: true,
    nsCoefficients: [3.4445, -4.775, 2.0315],
    eps: 1e-7,
    nsSteps: 5,
    adjustLrFn: null,
    maximize: false,
  },
  step: (bucket, numbers, rate) => native.muonStep(bucket, numbers, rate),
  needsWhole: true,
  check(options) {
    checkNotNegative('Muon', options, ['weightDecay', 'momentum', 'eps', 'nsSteps']);
    const { nsCoefficients, nsSteps, adjustLrFn } = options;
    if (!(Number.isInteger(nsSteps) && nsSteps < 100))
      throw new TorchError('BAD_ARGUMENT', `Muon: nsSteps is a whole number below 100, got ${nsSteps}`);
    if (
      !Array.isArray(nsCoefficients) ||
      nsCoefficients.length !== 3 ||
      !nsCoefficients.every((each) => Number.isFinite(each))
    )
      throw new TorchError(
        'BAD_ARGUMENT',
        `Muon: nsCoefficients are three numbers, got ${JSON.stringify(nsCoefficients)}`,
      );
    if (adjustLrFn !== null && adjustLrFn !== 'original' && adjustLrFn !== 'match_rms_adamw')
      throw new TorchError(
        'BAD_ARGUMENT',
        `Muon: adjustLrFn is 'original', 'match_rms_adamw' or null, got ${JSON.stringify(adjustLrFn)}`,
      );
  },
  checkParameter(parameter) {
    if (parameter.dim() === 2 && !parameter.isComplex()) return;
    throw new TorchError(
      'BAD_ARGUMENT',
      `Muon: parameters are real matrices, got [${parameter.shape.join(', ')}] of ${parameter.dtype.name}; give biases, norms and embeddings to another optimizer, AdamW for example`,
    );
  },
  slots: () => [{ name: 'momentum_buffer', kind: 'like' }],
  numbers: stepNumbers.muon,
  numberOf: (name, options) => (name === 'adjustLrFn' ? Number(options.adjustLrFn === 'match_rms_adamw') : undefined),
};

/** Momentum whose updates are made orthogonal, for the weights of hidden layers. @example new Muon(matrices, { lr: 0.02 }) */
export class Muon extends Optimizer<MuonOptions> {
  constructor(params: ParamsInput<MuonOptions>, options?: GivenOptions<MuonOptions>) {
    super(kind, params, options);
  }
}
