/** @file Muon: matrices beside AdamW, orthogonal updates, refusals. */
import { describe, expect, test } from 'vitest';
import { inputs, model } from '../../testing/optimizers.ts';
import { manualSeed, nn, ones, optim, randn, scope, type Tensor, zeros } from '../index.ts';

describe('Muon', () => {
  test('moves matrices beside AdamW, and goes on exactly where its state was saved', () => {
    const split = (net: nn.Sequential): [optim.Muon, optim.AdamW] => {
      const parameters = [...net.parameters()];
      const isMatrix = (parameter: Tensor): boolean => parameter.dim() === 2;
      return [
        new optim.Muon(parameters.filter(isMatrix), { lr: 0.02 }),
        new optim.AdamW(parameters.filter((parameter) => !isMatrix(parameter))),
      ];
    };
    const run = (net: nn.Sequential, optimizers: [optim.Muon, optim.AdamW], steps: number): number => {
      let loss = Number.NaN;
      for (let i = 0; i < steps; i++) {
        scope(() => {
          const value = net.forward(inputs).square().mean();
          value.backward();
          for (const optimizer of optimizers) {
            optimizer.step();
            optimizer.zeroGrad();
          }
          loss = value.item();
        });
      }
      return loss;
    };
    const a = model(1);
    const first = split(a);
    const begin = run(a, first, 1);
    expect(run(a, first, 60)).toBeLessThan(begin * 0.5);
    const b = model(2);
    b.loadStateDict(a.stateDict());
    const second = split(b);
    second.forEach((optimizer, i) => optimizer.loadStateDict((first[i] as optim.Optimizer).stateDict()));
    run(a, first, 3);
    run(b, second, 3);
    for (const [key, value] of a.stateDict()) expect(b.stateDict().get(key)?.equal(value), key).toBe(true);
  });

  test('makes an update orthogonal, whatever the gradient', () => {
    manualSeed(0);
    const p = zeros([3, 5]).requiresGrad_();
    p.grad = randn([3, 5]).mul(1000);
    new optim.Muon([p], { lr: 1, weightDecay: 0, momentum: 0 }).step();
    const singular = p.detach().matmul(p.detach().t()).toArray() as number[][];
    singular.forEach((row, i) =>
      row.forEach((value, j) => {
        expect(Math.abs(value - (i === j ? 0.9 : 0))).toBeLessThan(0.6);
      }),
    );
  });

  test('says what it cannot take', () => {
    const matrix = ones([2, 2]).requiresGrad_();
    expect(() => new optim.Muon([ones([2])])).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: parameters are real matrices, got [2] of float32; give biases, norms and embeddings to another optimizer, AdamW for example]`,
    );
    expect(() => new optim.Muon([matrix], { nsSteps: 100 })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: nsSteps is a whole number below 100, got 100]`,
    );
    expect(() => new optim.Muon([matrix], { nsCoefficients: [1, 2] as never })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: nsCoefficients are three numbers, got [1,2]]`,
    );
    expect(() => new optim.Muon([matrix], { adjustLrFn: 'adam' as never })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: adjustLrFn is 'original', 'match_rms_adamw' or null, got "adam"]`,
    );
  });
});
