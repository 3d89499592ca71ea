/** @file Dropout layers: they do nothing after `eval()`. */

import { readOptions } from '../../base/options.ts';
import { floatText, type Real, repr } from '../../base/text.ts';
import { dropout_, dropout as dropoutOp } from '../../generated/functions.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import {
  alphaDropout,
  checkProbability,
  dropout1d,
  dropout2d,
  dropout3d,
  featureAlphaDropout,
  type DropoutOptions as Settings,
} from '../functional/dropout.ts';
import { Module } from '../module.ts';

/** How much is dropped, and whether in place. */
export interface DropoutOptions {
  p?: Real | undefined;
  inplace?: boolean | undefined;
}

abstract class DropoutBase extends Module {
  readonly p: number;
  readonly inplace: boolean;

  /** As in PyTorch, the probability may also come first. */
  constructor(where: string, options: Real | DropoutOptions | undefined) {
    super();
    const given = readOptions(where, isNumber(options) ? { p: options } : options, { p: 0.5, inplace: false });
    checkProbability(where, given.p);
    this.p = given.p;
    this.inplace = given.inplace;
  }

  protected settings(): Settings {
    return { p: this.p, training: this.training, inplace: this.inplace };
  }

  override extraRepr(): string {
    return `p=${floatText(this.p)}, inplace=${repr(this.inplace)}`;
  }
}

function isNumber(value: Real | DropoutOptions | undefined): value is Real {
  return typeof value === 'number' || (typeof value === 'object' && value !== null && 'float' in value);
}

/** Drops elements. @example new Dropout({ p: 0.1 }) */
export class Dropout extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('Dropout', options);
  }

  forward(input: Tensor): Tensor {
    return this.inplace ? dropout_(input, this.p, this.training) : dropoutOp(input, this.p, this.training);
  }
}

/** Drops channels of sequences. */
export class Dropout1d extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('Dropout1d', options);
  }

  forward(input: Tensor): Tensor {
    return dropout1d(input, this.settings());
  }
}

/** Drops channels of images. */
export class Dropout2d extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('Dropout2d', options);
  }

  forward(input: Tensor): Tensor {
    return dropout2d(input, this.settings());
  }
}

/** Drops channels of volumes. */
export class Dropout3d extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('Dropout3d', options);
  }

  forward(input: Tensor): Tensor {
    return dropout3d(input, this.settings());
  }
}

/** Drops so that mean and variance stay as SELU wants them. */
export class AlphaDropout extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('AlphaDropout', options);
  }

  forward(input: Tensor): Tensor {
    return alphaDropout(input, this.settings());
  }
}

/** AlphaDropout of whole channels. */
export class FeatureAlphaDropout extends DropoutBase {
  constructor(options?: Real | DropoutOptions) {
    super('FeatureAlphaDropout', options);
  }

  forward(input: Tensor): Tensor {
    return featureAlphaDropout(input, this.settings());
  }
}
