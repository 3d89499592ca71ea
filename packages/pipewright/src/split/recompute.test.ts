/** @file Values that several stages compute again: a tensor that is changed in place is sent instead. */
import { float64, full, nn, randn, scope, stack, type Tensor, zeros } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, expectClose, expectEqual, shape } from '../../testing/pipes.ts';
import { pipeline } from '../index.ts';

const x = randn(3, 4, { dtype: float64 });

/** Scores of every row with every other, under a mask that all blocks share. */
class Masked extends nn.Module {
  blocks = new nn.ModuleList(Array.from({ length: 4 }, () => new Block()));
  private readonly change: (mask: Tensor, size: number) => void;

  constructor(change: (mask: Tensor, size: number) => void) {
    super();
    this.change = change;
    this.double();
  }

  forward(given: Tensor): Tensor {
    const size = given.size(0);
    const mask = zeros([size, size], { dtype: float64 });
    this.change(mask, size);
    let y = given;
    for (const block of this.blocks) {
      const z = block.forward(y);
      y = z.matmul(z.t()).add(mask).softmax(-1).matmul(z);
    }
    return y;
  }
}

describe('values that several stages use', () => {
  test('changed through a view, they are what they were changed to', () => {
    const changes: Record<string, (mask: Tensor, size: number) => void> = {
      rows: (mask, size) => {
        for (let i = 0; i < size; i++) mask.set_([i, `${i + 1}:`], -Infinity);
      },
      columns: (mask) => mask.at(':', '2:').fill_(-5),
      whole: (mask) => mask.fill_(-5).triu_(1),
      row: (mask) => mask.view(-1).narrow(0, 1, 2).add_(2),
    };
    for (const change of Object.values(changes))
      for (const stages of [2, 4])
        for (const shared of stages === 2 ? (['auto'] as const) : (['auto', 'recompute'] as const))
          expectEqual(new Masked(change), [x], { stages, shared, dynamicShapes: false });
  });

  test('changed by several stages, they are copies of each', () => {
    class Hidden extends nn.Module {
      blocks = new nn.ModuleList(Array.from({ length: 4 }, () => new Block()));
      forward(given: Tensor): unknown {
        const states = zeros([4, ...given.shape], { dtype: float64 });
        let y = given;
        for (const [i, block] of [...this.blocks].entries()) {
          y = block.forward(y);
          states.set_([i], y);
        }
        return [y, states];
      }
    }
    for (const stages of [2, 3, 4])
      for (const shared of ['auto', 'recompute'] as const)
        expect(expectEqual(new Hidden().double(), [x], { stages, shared }).numStages).toBe(stages);
  });

  test('computed from what is changed later, they are sent', () => {
    class Early extends nn.Module {
      a = new Block();
      b = new Block();
      forward(given: Tensor): Tensor {
        const input = given.mul(1);
        const before = input.add(1);
        input.mul_(2);
        return this.b.forward(this.a.forward(input).mul(before)).add(before);
      }
    }
    expectEqual(new Early().double(), [x], { stages: 2, shared: 'recompute' });
    class Given extends nn.Module {
      a = new Block();
      b = new Block();
      forward(given: Tensor, other: Tensor): Tensor {
        const before = other.add(1);
        other.mul_(2);
        return this.b.forward(this.a.forward(given).mul(before)).add(before).add(other);
      }
    }
    const model = new Given().double();
    const run = (of: { forward(...given: Tensor[]): unknown }): unknown =>
      scope(() => (of.forward(x.clone(), x.add(2)) as Tensor).toArray());
    const pipe = pipeline(model, [x.clone(), x.clone()], { stages: 2, shared: 'recompute' });
    expectClose(run(pipe as never), run(model));
  });

  test('that nothing changes are computed again', () => {
    class Plain extends nn.Module {
      blocks = new nn.ModuleList(Array.from({ length: 3 }, () => new Block()));
      forward(given: Tensor): Tensor {
        const scale = full([4], 0.5, { dtype: float64 }).add(1);
        let y = given;
        for (const block of this.blocks) y = block.forward(y).mul(scale);
        return stack([y, y]).sum(0);
      }
    }
    const pipe = expectEqual(new Plain().double(), [x], { stages: 3, shared: 'recompute' });
    expect(shape(pipe)).toMatchInlineSnapshot(`
      [
        "given<in -> add_1>1 [blocks.0.fc.weight blocks.0.fc.bias]",
        "add_1<0 -> mul_1>2 [blocks.1.fc.weight blocks.1.fc.bias]",
        "mul_1<1 -> sum> [blocks.2.fc.weight blocks.2.fc.bias]",
      ]
    `);
  });
});
