/** @file A number that is floating point even when it is whole. */

/** A number that is floating point even when it is whole: `float(2)` is 2.0. */
export class FloatScalar {
  readonly float: number;
  constructor(value: number) {
    this.float = value;
  }
}

/** Marks a number as floating point where an operator takes either kind. @example full([2], float(1)) // float32 */
export function float(value: number): FloatScalar {
  return new FloatScalar(value);
}
