/** @file Models that run under other modes in training than in evaluation: one graph cannot do both. */
import { autocast, checkpoint, float64, manualSeed, nn, noGrad, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, expectEqual } from '../../testing/pipes.ts';
import { pipeline, traceModule } from '../index.ts';

class ByMode extends nn.Module {
  a = new Block();
  private readonly around: (training: boolean, body: () => Tensor) => Tensor;

  constructor(around: (training: boolean, body: () => Tensor) => Tensor) {
    super();
    this.around = around;
  }

  forward(x: Tensor): Tensor {
    return this.around(this.training, () => this.a.forward(x)).mul(2);
  }
}

describe('training and evaluation under other modes', () => {
  test('autocast or gradients in one of them only: the other is refused', () => {
    const differences: ((training: boolean, body: () => Tensor) => Tensor)[] = [
      (training, body) => autocast({ dtype: 'bfloat16', enabled: training }, body),
      (training, body) => (training ? noGrad(body) : body()),
      (training, body) => (training ? body() : noGrad(body)),
    ];
    for (const around of differences)
      for (const training of [true, false]) {
        const model = new ByMode(around).train(training);
        expect(traceModule(model, [randn(2, 4)]).bothModes).toBe(false);
        const pipe = pipeline(model, [randn(2, 4)], {});
        expect(() => pipe.train(!training)).toThrow(expect.objectContaining({ code: 'FIXED_MODE' }));
        scope(() => {
          const x = randn(2, 4);
          const [want, got] = [model.forward(x), pipe.forward(x) as Tensor];
          expect([got.dtype, got.requiresGrad, got.toArray()]).toEqual([want.dtype, want.requiresGrad, want.toArray()]);
        });
      }
  });

  test('the same modes in both, and computing again in one of them, are one graph', () => {
    manualSeed(1);
    const same: ((training: boolean, body: () => Tensor) => Tensor)[] = [
      (_, body) => noGrad(body).add(body()),
      (training, body) => (training ? checkpoint(body, []) : body()),
    ];
    for (const around of same) {
      const model = new ByMode(around).double();
      for (const training of [true, false]) {
        model.train(training);
        expect(traceModule(model, [randn(2, 4, { dtype: float64 })]).bothModes).toBe(true);
        expectEqual(model, [randn(2, 4, { dtype: float64 })], {});
      }
    }
  });
});
