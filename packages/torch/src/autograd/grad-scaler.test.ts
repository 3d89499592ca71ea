/** @file Scaled losses: gradients of all kinds are unscaled. */
import { expect, test } from 'vitest';
import { GradScaler, nn, optim, tensor } from '../index.ts';

test('sparse gradients of embeddings are unscaled like others', () => {
  const embedding = new nn.Embedding(5, 2, { sparse: true });
  const optimizer = new optim.SGD(embedding.parameters(), { lr: 1 });
  const before = embedding.weight.detach().clone();
  const scaler = new GradScaler({ initScale: 8 });
  const loss = embedding.forward(tensor([1, 1, 3])).sum();
  scaler.scale(loss).backward();
  expect(embedding.weight.grad?.layout).toBe('sparse_coo');
  scaler.step(optimizer);
  scaler.update();
  const change = before.sub(embedding.weight.detach()).toArray() as number[][];
  const wanted = [0, 2, 0, 1, 0];
  change.forEach((row, i) => row.forEach((value) => expect(value).toBeCloseTo(wanted[i]!, 5)));
});
