/** @file Layers that put something around their input. */

import { expand, type Size } from '../../base/options.ts';
import { type Real, realText, toNumber, tupleText } from '../../base/text.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { pad } from '../functional/convolution.ts';
import { Module } from '../module.ts';

/** What all of them have in common: how much is put before and after, the last dimension first. */
abstract class Pad extends Module {
  readonly padding: readonly number[];

  constructor(where: string, dims: number, padding: Size) {
    super();
    this.padding = expand(`${where}: padding`, padding, 2 * dims);
  }

  override extraRepr(): string {
    return tupleText(this.padding);
  }
}

abstract class ReflectionPad extends Pad {
  forward(input: Tensor): Tensor {
    return pad(input, this.padding, { mode: 'reflect' });
  }
}

abstract class ReplicationPad extends Pad {
  forward(input: Tensor): Tensor {
    return pad(input, this.padding, { mode: 'replicate' });
  }
}

abstract class CircularPad extends Pad {
  forward(input: Tensor): Tensor {
    return pad(input, this.padding, { mode: 'circular' });
  }
}

abstract class ZeroPad extends Pad {
  forward(input: Tensor): Tensor {
    return pad(input, this.padding);
  }
}

abstract class ConstantPad extends Pad {
  readonly value: Real;

  constructor(where: string, dims: number, padding: Size, value: Real) {
    super(where, dims, padding);
    this.value = value;
  }

  forward(input: Tensor): Tensor {
    return pad(input, this.padding, { value: toNumber(this.value) });
  }

  override extraRepr(): string {
    return `padding=${tupleText(this.padding)}, value=${realText(this.value)}`;
  }
}

/** Mirrors the input at its borders. @example new ReflectionPad1d([2, 1]) */
export class ReflectionPad1d extends ReflectionPad {
  constructor(padding: Size) {
    super('ReflectionPad1d', 1, padding);
  }
}

/** Mirrors the input at its borders: [left, right, top, bottom]. */
export class ReflectionPad2d extends ReflectionPad {
  constructor(padding: Size) {
    super('ReflectionPad2d', 2, padding);
  }
}

/** Mirrors the input at its borders: [left, right, top, bottom, front, back]. */
export class ReflectionPad3d extends ReflectionPad {
  constructor(padding: Size) {
    super('ReflectionPad3d', 3, padding);
  }
}

/** Repeats the border. */
export class ReplicationPad1d extends ReplicationPad {
  constructor(padding: Size) {
    super('ReplicationPad1d', 1, padding);
  }
}

/** Repeats the border. */
export class ReplicationPad2d extends ReplicationPad {
  constructor(padding: Size) {
    super('ReplicationPad2d', 2, padding);
  }
}

/** Repeats the border. */
export class ReplicationPad3d extends ReplicationPad {
  constructor(padding: Size) {
    super('ReplicationPad3d', 3, padding);
  }
}

/** Continues with the other end. */
export class CircularPad1d extends CircularPad {
  constructor(padding: Size) {
    super('CircularPad1d', 1, padding);
  }
}

/** Continues with the other end. */
export class CircularPad2d extends CircularPad {
  constructor(padding: Size) {
    super('CircularPad2d', 2, padding);
  }
}

/** Continues with the other end. */
export class CircularPad3d extends CircularPad {
  constructor(padding: Size) {
    super('CircularPad3d', 3, padding);
  }
}

/** Zeros around. */
export class ZeroPad1d extends ZeroPad {
  constructor(padding: Size) {
    super('ZeroPad1d', 1, padding);
  }
}

/** Zeros around. */
export class ZeroPad2d extends ZeroPad {
  constructor(padding: Size) {
    super('ZeroPad2d', 2, padding);
  }
}

/** Zeros around. */
export class ZeroPad3d extends ZeroPad {
  constructor(padding: Size) {
    super('ZeroPad3d', 3, padding);
  }
}

/** One value around. */
export class ConstantPad1d extends ConstantPad {
  constructor(padding: Size, value: Real) {
    super('ConstantPad1d', 1, padding, value);
  }
}

/** One value around. */
export class ConstantPad2d extends ConstantPad {
  constructor(padding: Size, value: Real) {
    super('ConstantPad2d', 2, padding, value);
  }
}

/** One value around. */
export class ConstantPad3d extends ConstantPad {
  constructor(padding: Size, value: Real) {
    super('ConstantPad3d', 3, padding, value);
  }
}
