/**
 * @file The order of an epoch as a function of seed, epoch and position, so that a run can continue in the middle of an epoch.
 * Short epochs are shuffled as a whole and kept; in long ones each position is computed by itself.
 */

/** Longest epoch that is shuffled as a whole. */
const LONGEST_SHUFFLE = 65_536;

/** Rounds of the network that permutes long epochs. */
const ROUNDS = 12;

/** 32 well mixed bits of two numbers. */
function mix(a: number, b: number): number {
  let h = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35);
  h = Math.imul(h ^ (h >>> 16), 0x7feb352d);
  h = Math.imul(h ^ (h >>> 15), 0x846ca68b);
  return (h ^ (h >>> 16)) >>> 0;
}

/** 32 bits of a list of numbers of up to 53 bits. */
function hash(...values: readonly number[]): number {
  let state = 0x2545f491;
  for (const value of values) state = mix(mix(state, value % 4294967296), Math.floor(value / 4294967296));
  return state;
}

/** 32 bits of any number of numbers, fractions included, as text. @example digest([0.5, 2]) */
export function digest(values: Iterable<number>): string {
  const bits = new Uint32Array(Float64Array.from(values).buffer);
  let state = bits.length;
  for (const word of bits) state = mix(state, word);
  return state.toString(16).padStart(8, '0');
}

/** A number of [0, 1) for a list of numbers. */
export function uniform(...values: readonly number[]): number {
  return (hash(...values, 0) * 2097152 + (hash(...values, 1) >>> 11)) / 9007199254740992;
}

/** A whole number below `limit` for a list of numbers. */
export function below(limit: number, ...values: readonly number[]): number {
  return Math.floor(uniform(...values) * limit);
}

/** A permutation of 0 to `length` - 1 for every seed and epoch. @example new Permutation(10, 1).at(0, 3) */
export class Permutation {
  private readonly length: number;
  private readonly seed: number;
  private shuffled: { readonly epoch: number; readonly order: Uint32Array } | null = null;

  constructor(length: number, seed: number) {
    this.length = length;
    this.seed = seed;
  }

  /** The index at a position of an epoch. */
  at(epoch: number, position: number): number {
    return this.length <= LONGEST_SHUFFLE ? this.shuffle(epoch)[position]! : this.place(epoch, position);
  }

  private shuffle(epoch: number): Uint32Array {
    if (this.shuffled?.epoch === epoch) return this.shuffled.order;
    const order = Uint32Array.from({ length: this.length }, (_, i) => i);
    for (let i = this.length - 1; i > 0; i--) {
      const other = below(i + 1, this.seed, epoch, i);
      const value = order[i]!;
      order[i] = order[other]!;
      order[other] = value;
    }
    this.shuffled = { epoch, order };
    return order;
  }

  /** A Feistel network over the next power of four, walked until it comes back into the range: a permutation of the range. */
  private place(epoch: number, position: number): number {
    const bits = Math.ceil(Math.log2(this.length) / 2);
    const half = 2 ** bits;
    const key = hash(this.seed, epoch);
    let value = position;
    do {
      let [left, right] = [Math.floor(value / half), value % half];
      for (let round = 0; round < ROUNDS; round++)
        [left, right] = [right, (left ^ (mix(mix(key, round), right) >>> (32 - bits))) >>> 0];
      value = left * half + right;
    } while (value >= this.length);
    return value;
  }
}
