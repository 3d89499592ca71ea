/** @file A small repeatable source of random numbers: the same seed gives the same search everywhere. */

/**
 * Numbers from a seed.
 * @example new Random(1).below(6) // 0 to 5
 */
export class Random {
  private state: number;

  constructor(seed: number) {
    // Any seed, 0 too, must leave a state that is not 0.
    this.state = (Math.imul(seed | 0, 0x9e3779b1) ^ 0x6a09e667) | 0 || 1;
    for (let i = 0; i < 4; i++) this.bits();
  }

  /** An integer from 0 to `count` - 1. */
  below(count: number): number {
    return Math.floor(this.unit() * count);
  }

  /** A number from 0 up to but not including 1. */
  unit(): number {
    return this.bits() / 2 ** 32;
  }

  private bits(): number {
    let x = this.state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.state = x;
    return x >>> 0;
  }
}
