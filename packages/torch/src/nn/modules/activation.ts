/** @file Activation functions as modules. */

import { TorchError } from '../../base/errors.ts';
import { FloatScalar } from '../../base/float-scalar.ts';
import { readOptions } from '../../base/options.ts';
import { floatText, type Real, realText, repr, toNumber } from '../../base/text.ts';
import {
  celu,
  celu_,
  elu,
  elu_,
  gelu,
  glu,
  hardshrink,
  hardsigmoid,
  hardsigmoid_,
  hardswish,
  hardswish_,
  hardtanh,
  hardtanh_,
  leakyRelu,
  leakyRelu_,
  logSigmoid,
  mish,
  mish_,
  prelu,
  relu,
  relu_,
  relu6,
  relu6_,
  rrelu,
  rrelu_,
  selu,
  selu_,
  sigmoid,
  silu,
  silu_,
  softplus,
  softshrink,
  tanh,
  threshold,
  threshold_,
} from '../../generated/functions.ts';
import { type Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { logSoftmax, softmax, softmin, softsign, tanhshrink } from '../functional/activation.ts';
import { constant_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';

/** Whether the input itself is changed. */
export interface InplaceOptions {
  inplace?: boolean | undefined;
}

/** What activations that can work in place have in common. */
abstract class InplaceActivation extends Module {
  readonly inplace: boolean;

  constructor(where: string, options: InplaceOptions | undefined) {
    super();
    this.inplace = readOptions(where, options, { inplace: false }).inplace;
  }

  override extraRepr(): string {
    return this.inplace ? 'inplace=True' : '';
  }
}

function inplaceText(inplace: boolean): string {
  return inplace ? ', inplace=True' : '';
}

/** `max(0, x)`. @example new ReLU() */
export class ReLU extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('ReLU', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? relu_(input) : relu(input);
  }
}

/** `min(max(0, x), 6)` */
export class ReLU6 extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('ReLU6', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? relu6_(input) : relu6(input);
  }
}

/** `x * sigmoid(x)` */
export class SiLU extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('SiLU', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? silu_(input) : silu(input);
  }
}

/** `x * tanh(softplus(x))` */
export class Mish extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('Mish', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? mish_(input) : mish(input);
  }
}

/** The self-normalising activation. */
export class SELU extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('SELU', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? selu_(input) : selu(input);
  }
}

/** A sigmoid of straight pieces. */
export class Hardsigmoid extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('Hardsigmoid', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? hardsigmoid_(input) : hardsigmoid(input);
  }

  override extraRepr(): string {
    return '';
  }
}

/** A SiLU of straight pieces. */
export class Hardswish extends InplaceActivation {
  constructor(options?: InplaceOptions) {
    super('Hardswish', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? hardswish_(input) : hardswish(input);
  }

  override extraRepr(): string {
    return '';
  }
}

/** `value` where the input is at most `threshold`. */
export class Threshold extends Module {
  readonly threshold: number;
  readonly value: number;
  readonly inplace: boolean;

  constructor(limit: Real, value: Real, options?: InplaceOptions) {
    super();
    this.threshold = toNumber(limit);
    this.value = toNumber(value);
    this.inplace = readOptions('Threshold', options, { inplace: false }).inplace;
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? threshold_ : threshold)(input, this.threshold, this.value);
  }

  override extraRepr(): string {
    return `threshold=${floatText(this.threshold)}, value=${floatText(this.value)}${inplaceText(this.inplace)}`;
  }
}

/** Leaky ReLU with a random slope in training. */
export class RReLU extends Module {
  readonly lower: number;
  readonly upper: number;
  readonly inplace: boolean;

  constructor(options?: InplaceOptions & { lower?: Real | undefined; upper?: Real | undefined }) {
    super();
    const given = readOptions('RReLU', options, { lower: 1 / 8, upper: 1 / 3, inplace: false });
    this.lower = given.lower;
    this.upper = given.upper;
    this.inplace = given.inplace;
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? rrelu_ : rrelu)(input, this.lower, this.upper, this.training);
  }

  override extraRepr(): string {
    return `lower=${floatText(this.lower)}, upper=${floatText(this.upper)}${inplaceText(this.inplace)}`;
  }
}

/** The input between `minVal` and `maxVal`. */
export class Hardtanh extends Module {
  readonly minVal: number;
  readonly maxVal: number;
  readonly inplace: boolean;

  constructor(options?: InplaceOptions & { minVal?: Real | undefined; maxVal?: Real | undefined }) {
    super();
    const given = readOptions('Hardtanh', options, { minVal: -1, maxVal: 1, inplace: false });
    if (!(given.maxVal > given.minVal))
      throw new TorchError(
        'BAD_ARGUMENT',
        `Hardtanh: maxVal (${given.maxVal}) must be greater than minVal (${given.minVal})`,
      );
    this.minVal = given.minVal;
    this.maxVal = given.maxVal;
    this.inplace = given.inplace;
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? hardtanh_ : hardtanh)(input, this.minVal, this.maxVal);
  }

  override extraRepr(): string {
    return `min_val=${floatText(this.minVal)}, max_val=${floatText(this.maxVal)}${inplaceText(this.inplace)}`;
  }
}

/** What ELU and CELU have in common. */
abstract class AlphaActivation extends Module {
  readonly alpha: number;
  readonly inplace: boolean;

  constructor(where: string, options: (InplaceOptions & { alpha?: Real | undefined }) | undefined) {
    super();
    const given = readOptions(where, options, { alpha: 1, inplace: false });
    this.alpha = given.alpha;
    this.inplace = given.inplace;
  }

  override extraRepr(): string {
    return `alpha=${floatText(this.alpha)}${inplaceText(this.inplace)}`;
  }
}

/** Exponential below zero. */
export class ELU extends AlphaActivation {
  constructor(options?: InplaceOptions & { alpha?: Real | undefined }) {
    super('ELU', options);
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? elu_ : elu)(input, this.alpha);
  }
}

/** Exponential below zero, with a continuous derivative. */
export class CELU extends AlphaActivation {
  constructor(options?: InplaceOptions & { alpha?: Real | undefined }) {
    super('CELU', options);
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? celu_ : celu)(input, this.alpha);
  }
}

/** A small slope below zero. */
export class LeakyReLU extends Module {
  readonly negativeSlope: number;
  readonly inplace: boolean;

  constructor(options?: InplaceOptions & { negativeSlope?: Real | undefined }) {
    super();
    const given = readOptions('LeakyReLU', options, { negativeSlope: 0.01, inplace: false });
    this.negativeSlope = given.negativeSlope;
    this.inplace = given.inplace;
  }

  forward(input: Tensor): Tensor {
    return (this.inplace ? leakyRelu_ : leakyRelu)(input, this.negativeSlope);
  }

  override extraRepr(): string {
    return `negative_slope=${floatText(this.negativeSlope)}${inplaceText(this.inplace)}`;
  }
}

/** A learned slope below zero. */
export class PReLU extends Module {
  readonly numParameters: number;
  readonly init: number;
  weight: Parameter;

  constructor(options?: FactoryOptions & { numParameters?: number | undefined; init?: Real | undefined }) {
    super();
    const given = readOptions('PReLU', options, { numParameters: 1, init: 0.25, ...factory });
    this.numParameters = given.numParameters;
    this.init = given.init;
    this.weight = emptyParameter([given.numParameters], given);
    this.resetParameters();
  }

  /** Sets the initial slope. */
  resetParameters(): void {
    constant_(this.weight, this.init);
  }

  forward(input: Tensor): Tensor {
    return prelu(input, this.weight);
  }

  override extraRepr(): string {
    return `num_parameters=${this.numParameters}`;
  }
}

/** One half of the input, gated by the other. */
export class GLU extends Module {
  readonly dim: number;

  constructor(options?: { dim?: number | undefined }) {
    super();
    this.dim = readOptions('GLU', options, { dim: -1 }).dim;
  }

  forward(input: Tensor): Tensor {
    return glu(input, this.dim);
  }

  override extraRepr(): string {
    return `dim=${this.dim}`;
  }
}

/** `x * Φ(x)`; 'tanh' approximates. */
export class GELU extends Module {
  readonly approximate: string;

  constructor(options?: { approximate?: 'none' | 'tanh' | undefined }) {
    super();
    this.approximate = readOptions('GELU', options, { approximate: 'none' }).approximate;
  }

  forward(input: Tensor): Tensor {
    return this.approximate === 'none' ? gelu(input) : gelu(input, { approximate: this.approximate });
  }

  override extraRepr(): string {
    return `approximate=${repr(this.approximate)}`;
  }
}

/** Zero between -lambd and lambd. */
export class Hardshrink extends Module {
  readonly lambd: number;

  constructor(options?: { lambd?: Real | undefined }) {
    super();
    this.lambd = readOptions('Hardshrink', options, { lambd: 0.5 }).lambd;
  }

  forward(input: Tensor): Tensor {
    return hardshrink(input, this.lambd);
  }

  override extraRepr(): string {
    return floatText(this.lambd);
  }
}

/** Towards zero by lambd. */
export class Softshrink extends Module {
  readonly lambd: Real;

  constructor(options?: { lambd?: Real | undefined }) {
    super();
    this.lambd = readOptions<{ lambd: Real }>('Softshrink', options, { lambd: new FloatScalar(0.5) }).lambd;
  }

  forward(input: Tensor): Tensor {
    return softshrink(input, toNumber(this.lambd));
  }

  override extraRepr(): string {
    return realText(this.lambd);
  }
}

/** `log(1 + exp(beta * x)) / beta`, linear above `threshold`. */
export class Softplus extends Module {
  readonly beta: Real;
  readonly threshold: Real;

  constructor(options?: { beta?: Real | undefined; threshold?: Real | undefined }) {
    super();
    const given = readOptions<{ beta: Real; threshold: Real }>('Softplus', options, {
      beta: new FloatScalar(1),
      threshold: new FloatScalar(20),
    });
    this.beta = given.beta;
    this.threshold = given.threshold;
  }

  forward(input: Tensor): Tensor {
    return softplus(input, toNumber(this.beta), toNumber(this.threshold));
  }

  override extraRepr(): string {
    return `beta=${realText(this.beta)}, threshold=${realText(this.threshold)}`;
  }
}

/** The logistic function. */
export class Sigmoid extends Module {
  forward(input: Tensor): Tensor {
    return sigmoid(input);
  }
}

/** The logarithm of the logistic function. */
export class LogSigmoid extends Module {
  forward(input: Tensor): Tensor {
    return logSigmoid(input);
  }
}

/** The hyperbolic tangent. */
export class Tanh extends Module {
  forward(input: Tensor): Tensor {
    return tanh(input);
  }
}

/** `x - tanh(x)` */
export class Tanhshrink extends Module {
  forward(input: Tensor): Tensor {
    return tanhshrink(input);
  }
}

/** `x / (1 + |x|)` */
export class Softsign extends Module {
  forward(input: Tensor): Tensor {
    return softsign(input);
  }
}

/** What softmax and its relatives have in common. */
abstract class DimActivation extends Module {
  readonly dim: number | null;

  constructor(where: string, options: { dim?: number | null | undefined } | undefined) {
    super();
    this.dim = readOptions<{ dim: number | null }>(where, options, { dim: null }).dim;
  }

  override extraRepr(): string {
    return `dim=${repr(this.dim)}`;
  }
}

/** Positive numbers that add up to one along a dimension. */
export class Softmax extends DimActivation {
  constructor(options?: { dim?: number | null | undefined }) {
    super('Softmax', options);
  }

  forward(input: Tensor): Tensor {
    return softmax(input, { dim: this.dim });
  }
}

/** The logarithm of Softmax. */
export class LogSoftmax extends DimActivation {
  constructor(options?: { dim?: number | null | undefined }) {
    super('LogSoftmax', options);
  }

  forward(input: Tensor): Tensor {
    return logSoftmax(input, { dim: this.dim });
  }
}

/** Softmax of the negated input. */
export class Softmin extends DimActivation {
  constructor(options?: { dim?: number | null | undefined }) {
    super('Softmin', options);
  }

  forward(input: Tensor): Tensor {
    return softmin(input, { dim: this.dim });
  }
}

/** Softmax over the channels of images. */
export class Softmax2d extends Module {
  forward(input: Tensor): Tensor {
    if (input.dim() !== 3 && input.dim() !== 4)
      throw new TorchError('SHAPE', `Softmax2d: the input must have 3 or 4 dimensions, this one has ${input.dim()}`);
    return softmax(input, -3);
  }
}
