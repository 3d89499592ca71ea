/** @file Attention with functions as scores and masks, compared with libtorch's own and with masks written out. */
import { arange, float64, nn, randn, scope, type Tensor, tensor, where } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { createBlockMask, flexAttention, splitArgsKwargsIntoChunks } from '../index.ts';

const make = (heads: number): Tensor => randn(3, heads, 10, 4, { dtype: float64 });
const close = (a: Tensor, b: Tensor): void => expect(a.sub(b).abs().max().item()).toBeLessThan(1e-12);

test('without functions, with a causal mask and with shared keys it is scaled dot product attention', () => {
  scope(() => {
    const [q, k, v] = [make(4), make(4), make(4)];
    close(flexAttention(q, k, v), nn.functional.scaledDotProductAttention(q, k, v));
    const causal = createBlockMask((_b, _h, query, key) => query.ge(key), { queries: 10, keys: 10, blockSize: 4 });
    close(
      flexAttention(q, k, v, { blockMask: causal }),
      nn.functional.scaledDotProductAttention(q, k, v, { isCausal: true }),
    );
    const [k2, v2] = [make(2), make(2)];
    const repeated = [k2, v2].map((each) => each.repeatInterleave(2, { dim: 1 })) as [Tensor, Tensor];
    close(
      flexAttention(q, k2, v2, { enableGqa: true, scale: 0.3 }),
      nn.functional.scaledDotProductAttention(q, ...repeated, { scale: 0.3 }),
    );
    expect(() => flexAttention(q, k2, v2)).toThrow(/number of heads of queries is 4; give as many heads as keys \(2\)/);
    expect(() => flexAttention(q, k, v, { blockMask: {} as never })).toThrow(/createBlockMask/);
  });
});

test('scores are changed by position, head and entry, and gradients flow', () => {
  scope(() => {
    const [q, k, v] = [make(2).requiresGrad_(), make(2).requiresGrad_(), make(2).requiresGrad_()];
    const slopes = tensor([0.5, 0.25], { dtype: float64 });
    const bias = arange(10)
      .view(1, 10)
      .sub(arange(10).view(10, 1))
      .abs()
      .mul(slopes.view(2, 1, 1))
      .neg();
    const want = nn.functional.scaledDotProductAttention(q, k, v, { attnMask: bias });
    const got = flexAttention(q, k, v, {
      scoreMod: (score, { head, query, key }) => score.sub(query.sub(key).abs().mul(slopes.take(head))),
    });
    close(got, want);
    const grads = [got, want].map((out) => {
      out.square().sum().backward();
      return [q, k, v].map((each) => {
        const found = each.grad!;
        each.grad = null;
        return found;
      });
    }) as [Tensor[], Tensor[]];
    grads[0].forEach((grad, i) => close(grad, grads[1][i] as Tensor));
  });
});

test('a mask that depends on the entry is cut into microbatches that give the same, and rows without keys give zeros', () => {
  scope(() => {
    const [q, k, v] = [make(2), make(2), make(2)];
    const lengths = tensor([10, 0, 4]);
    const blockMask = createBlockMask((batch, _h, _q, key) => key.lt(lengths.take(batch)), {
      batch: 3,
      queries: 10,
      keys: 10,
      blockSize: 5,
    });
    const whole = flexAttention(q, k, v, { blockMask });
    expect(whole.select(0, 1).abs().max().item()).toBe(0);
    const [, chunks] = splitArgsKwargsIntoChunks([], { q, k, v, blockMask }, 3);
    chunks.forEach(({ q, k, v, blockMask }, i) =>
      close(
        flexAttention(q as Tensor, k as Tensor, v as Tensor, { blockMask: blockMask as never }),
        whole.narrow(0, i, 1),
      ),
    );
    expect(blockMask.fullKvNumBlocks?.toArray()).toEqual([[[2, 2]], [[0, 0]], [[0, 0]]]);
    expect(blockMask.kvNumBlocks.toArray()).toEqual([[[0, 0]], [[0, 0]], [[1, 1]]]);
    expect(where(blockMask.kvNumBlocks.gt(0), 1, 0).sum().item()).toBe(2);
  });
});
