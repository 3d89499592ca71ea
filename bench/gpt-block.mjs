// @ts-check
/** @file The block of the GPTs that the benchmarks train, one for all of them; bench/python/gpt_block.py is the same in Python. */
import { nn, scope } from '@pipewright/torch';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/** Attention and a layer of four times the width. What it makes on the way is freed at its end, as leaving a function does in Python. */
export class Block extends nn.Module {
  /** @param {number} width @param {number} heads */
  constructor(width, heads) {
    super();
    this.heads = heads;
    this.ln1 = new nn.LayerNorm(width);
    this.ln2 = new nn.LayerNorm(width);
    this.qkv = new nn.Linear(width, 3 * width);
    this.proj = new nn.Linear(width, width);
    this.fc = new nn.Linear(width, 4 * width);
    this.out = new nn.Linear(4 * width, width);
  }

  /** @param {Tensor} x */
  forward(x) {
    return scope(() => {
      const [b, t, d] = /** @type {[number, number, number]} */ (x.shape);
      const [q, k, v] = /** @type {[Tensor, Tensor, Tensor]} */ (
        this.qkv
          .forward(this.ln1.forward(x))
          .split(d, 2)
          .map((y) => y.view([b, t, this.heads, d / this.heads]).transpose(1, 2))
      );
      const a = nn.functional.scaledDotProductAttention(q, k, v, { isCausal: true }).transpose(1, 2).reshape([b, t, d]);
      const y = x.add(this.proj.forward(a));
      return y.add(this.out.forward(nn.functional.gelu(this.fc.forward(this.ln2.forward(y)))));
    });
  }
}
