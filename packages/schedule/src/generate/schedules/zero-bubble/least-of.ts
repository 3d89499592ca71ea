/** @file Which of many numbers is the least, while they change one at a time. */

/** The least of some numbers, which are Infinity at first. */
export class LeastOf {
  /** A tree: node n has the index of the least below it, its children are 2n and 2n + 1. */
  private readonly tree: Int32Array;
  private readonly values: Float64Array;
  private readonly leaves: number;

  constructor(count: number) {
    this.leaves = 2 ** Math.ceil(Math.log2(Math.max(count, 2)));
    this.values = new Float64Array(this.leaves).fill(Number.POSITIVE_INFINITY);
    this.tree = new Int32Array(2 * this.leaves);
    for (let i = 0; i < this.leaves; i++) this.tree[this.leaves + i] = i;
    for (let node = this.leaves - 1; node > 0; node--) this.tree[node] = this.tree[2 * node]!;
  }

  /** Where the least is; of several the first. */
  get index(): number {
    return this.tree[1]!;
  }

  set(index: number, value: number): void {
    this.values[index] = value;
    for (let node = (this.leaves + index) >> 1; node > 0; node >>= 1) {
      const [left, right] = [this.tree[2 * node]!, this.tree[2 * node + 1]!];
      this.tree[node] = this.values[right]! < this.values[left]! ? right : left;
    }
  }
}
