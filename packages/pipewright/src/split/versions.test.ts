/** @file Changes in place of traced models, in another stage than that of the tensor, through views that may be copies. */
import { float64, nn, randn, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { expectEqual } from '../../testing/pipes.ts';
import { pipeSplit } from '../index.ts';

const x = randn(3, 4, { dtype: float64 });

/** Changes the same tensor in one stage after the other. */
class Changes extends nn.Module {
  a = new nn.Linear(4, 4);
  private readonly steps: readonly ((y: Tensor) => unknown)[];

  constructor(steps: readonly ((y: Tensor) => unknown)[]) {
    super();
    this.steps = steps;
    this.double();
  }

  forward(given: Tensor): unknown {
    const y = this.a.forward(given).mul(1);
    const seen: Tensor[] = [];
    for (const step of this.steps) {
      pipeSplit();
      step(y);
      seen.push(y.mul(1));
    }
    return [y, ...seen, y.view(-1).exp()];
  }
}

describe('a tensor that several stages change', () => {
  const ways: Record<string, (y: Tensor, factor: number) => unknown> = {
    whole: (y, factor) => y.mul_(factor),
    view: (y, factor) => y.view(y.size(0), 4).mul_(factor),
    reshape: (y, factor) => y.reshape(-1, 2).mul_(factor),
    flatten: (y, factor) => y.flatten().narrow(0, 1, 5).mul_(factor),
    contiguous: (y, factor) => y.contiguous().select(0, 1).mul_(factor),
    copied: (y, factor) => y.t().reshape(-1).mul_(factor),
    columns: (y, factor) => y.narrow(1, 2, 2).mul_(factor),
  };

  test('has all changes, whatever views they were made through', () => {
    for (const first of Object.values(ways))
      for (const second of Object.values(ways)) {
        const model = new Changes([(y) => first(y, 2), (y) => second(y, 3)]);
        expect(expectEqual(model, [x], {}).numStages).toBe(3);
      }
  });

  test('in one stage after the other, and in one stage several times', () => {
    const model = new Changes([
      (y) => ways['reshape']!(y, 2),
      (y) => y.exp(),
      (y) => [ways['columns']!(y, 3), ways['flatten']!(y, 0.5)],
      (y) => ways['view']!(y, 5),
    ]);
    expectEqual(model, [x], {});
  });
});
