/** @file Layers over all features: Linear, Bilinear, Identity. */

import { show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { repr } from '../../base/text.ts';
import { bilinear, linear } from '../../generated/functions.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { type FactoryOptions, factory } from '../factory.ts';
import { calculateFanInAndFanOut, kaimingUniform_, uniform_ } from '../init.ts';
import { Module } from '../module.ts';
import { emptyParameter, type Parameter } from '../parameter.ts';

/** Whether a bias is added, and what the parameters are like. */
export interface BiasOptions extends FactoryOptions {
  bias?: boolean | undefined;
}

/** Returns its input. */
export class Identity extends Module {
  constructor(..._anything: unknown[]) {
    super();
  }

  forward(input: Tensor): Tensor {
    return input;
  }
}

/** `x @ weight.T + bias`. @example new Linear(64, 10).forward(x) */
export class Linear extends Module {
  readonly inFeatures: number;
  readonly outFeatures: number;
  weight: Parameter;
  bias: Parameter | null;

  constructor(inFeatures: number, outFeatures: number, options?: BiasOptions) {
    super();
    checkWhole('Linear: inFeatures', inFeatures);
    checkWhole('Linear: outFeatures', outFeatures);
    const given = readOptions('Linear', options, { bias: true, ...factory });
    this.inFeatures = inFeatures;
    this.outFeatures = outFeatures;
    this.weight = emptyParameter([outFeatures, inFeatures], given);
    this.bias = given.bias ? emptyParameter([outFeatures], given) : null;
    this.resetParameters();
  }

  /** Draws new initial values. */
  resetParameters(): void {
    resetWeightAndBias(this.weight, this.bias);
  }

  forward(input: Tensor | { input: Tensor }): Tensor {
    return linear(input instanceof Tensor ? input : ((input ?? {}) as { input: Tensor }).input, this.weight, this.bias);
  }

  override extraRepr(): string {
    return `in_features=${this.inFeatures}, out_features=${this.outFeatures}, bias=${repr(this.bias !== null)}`;
  }
}

/** The initial values of linear and convolutional layers. */
export function resetWeightAndBias(weight: Tensor, bias: Tensor | null): void {
  kaimingUniform_(weight, { a: Math.sqrt(5) });
  if (bias === null) return;
  const [fanIn] = calculateFanInAndFanOut(weight);
  const bound = fanIn > 0 ? 1 / Math.sqrt(fanIn) : 0;
  uniform_(bias, -bound, bound);
}

/** `x1 @ weight @ x2 + bias` */
export class Bilinear extends Module {
  readonly in1Features: number;
  readonly in2Features: number;
  readonly outFeatures: number;
  weight: Parameter;
  bias: Parameter | null;

  constructor(in1Features: number, in2Features: number, outFeatures: number, options?: BiasOptions) {
    super();
    if (typeof in1Features !== 'number' || !(in1Features > 0))
      throw new TorchError('BAD_ARGUMENT', `Bilinear: in1Features must be greater than 0, got ${show(in1Features)}`);
    checkWhole('Bilinear: in2Features', in2Features);
    checkWhole('Bilinear: outFeatures', outFeatures);
    const given = readOptions('Bilinear', options, { bias: true, ...factory });
    this.in1Features = in1Features;
    this.in2Features = in2Features;
    this.outFeatures = outFeatures;
    this.weight = emptyParameter([outFeatures, in1Features, in2Features], given);
    this.bias = given.bias ? emptyParameter([outFeatures], given) : null;
    this.resetParameters();
  }

  /** Draws new initial values. */
  resetParameters(): void {
    const bound = 1 / Math.sqrt(this.in1Features);
    uniform_(this.weight, -bound, bound);
    if (this.bias !== null) uniform_(this.bias, -bound, bound);
  }

  forward(input1: Tensor, input2: Tensor): Tensor {
    return bilinear(input1, input2, this.weight, this.bias);
  }

  override extraRepr(): string {
    return `in1_features=${this.in1Features}, in2_features=${this.in2Features}, out_features=${this.outFeatures}, bias=${repr(this.bias !== null)}`;
  }
}
