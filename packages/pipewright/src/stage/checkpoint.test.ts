/** @file Checkpointed stages: what a module counts in its buffers changes once for each microbatch. */
import { manualSeed, nn, noGrad, randn, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { mse } from '../../testing/layers.ts';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from './pipeline-stage.ts';

/** Batch norm, and a counter of its own. */
class Normed extends nn.Module {
  readonly fc: nn.Linear = new nn.Linear(4, 4);
  readonly norm: nn.BatchNorm1d = new nn.BatchNorm1d(4);
  readonly calls: nn.Buffer;

  constructor() {
    super();
    this.calls = new nn.Buffer(randn([1]).zero_());
  }

  forward(x: Tensor): Tensor {
    noGrad(() => this.calls.add_(1));
    return this.norm.forward(this.fc.forward(x)).tanh();
  }
}

function train(checkpoint: boolean): { buffers: number[][]; grads: number[][]; identical: boolean } {
  manualSeed(5);
  const modules = [new Normed().double(), new Normed().double()];
  const before = modules.flatMap((module) => module.buffers());
  const stages = modules.map((module, i) => new PipelineStage(module, i, 2, { checkpoint }));
  const runtime = new PipelineRuntime(stages, 'Interleaved1F1B', { microbatches: 4, lossFn: mse });
  const [x, y] = [randn([16, 4], { dtype: 'float64' }), randn([16, 4], { dtype: 'float64' })];
  for (let i = 0; i < 2; i++) runtime.step(x, { target: y });
  const numbers = (tensor: Tensor): number[] => [tensor.double().flatten().toArray()].flat(2) as number[];
  const after = modules.flatMap((module) => module.buffers());
  return {
    buffers: after.map(numbers),
    grads: modules.flatMap((module) => module.parameters().map((p) => numbers(p.grad!))),
    identical: after.every((buffer, i) => buffer === before[i]),
  };
}

test('statistics, counters and gradients are those of stages that are not checkpointed', () => {
  const [plain, checkpointed] = [train(false), train(true)];
  expect(checkpointed.buffers).toEqual(plain.buffers);
  expect(checkpointed.identical).toBe(true);
  expect(plain.buffers.flat()).toContain(8); // two steps of four microbatches
  checkpointed.grads.forEach((values, i) =>
    values.forEach((value, j) => expect(value).toBeCloseTo(plain.grads[i]?.[j] as number, 12)),
  );
});
