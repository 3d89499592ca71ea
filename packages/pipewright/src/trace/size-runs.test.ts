/** @file Sizes inferred from few runs: right at every other size, narrowed to those that were proven, or fixed with the reason. */
import { nn, ones, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { formatGraph, GraphModule, traceModule } from '../index.ts';

/** A model that is one function. */
class By extends nn.Module {
  private readonly body: (x: Tensor, b: number) => Tensor;
  constructor(body: (x: Tensor, b: number) => Tensor) {
    super();
    this.body = body;
  }
  forward(x: Tensor): Tensor {
    return this.body(x, x.size(0));
  }
}

const sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 33, 64, 100];

/** At each size the trace does as the model, or refuses the size; the sizes that it takes, or what it fixed the sizes for. */
function taken(body: (x: Tensor, b: number) => Tensor, example: number): string {
  const model = new By(body);
  const { graph, state, fixedBecause } = traceModule(model, [ones([example, 2])]);
  const module = new GraphModule(graph, state);
  const good = sizes.filter((size) =>
    scope(() => {
      const x = randn(size, 2);
      let found: unknown;
      try {
        found = (module.forward(x) as Tensor).toArray();
      } catch (error) {
        expect(error).toMatchObject({ code: 'GRAPH_INPUT' });
        return false;
      }
      expect(found, `at ${size}, traced at ${example}`).toEqual(model.forward(x).toArray());
      return true;
    }),
  );
  if (good.length === sizes.length) return 'all';
  return fixedBecause === null ? `from ${good[0]}` : `only ${good.join()}`;
}

const models: Record<string, (x: Tensor, b: number) => Tensor> = {
  halfRoundedUp: (x, b) => x.mul(Math.ceil(b / 2)),
  half: (x, b) => x.mul(Math.floor(b / 2)),
  square: (x, b) => x.mul(b * b),
  pairs: (x, b) => x.mul((b * (b - 1)) / 2),
  atMostFive: (x, b) => x.mul(Math.min(b, 5)),
  atLeastEight: (x, b) => x.mul(Math.max(b, 8)),
  aboveSix: (x, b) => (b > 6 ? x.relu() : x.abs()),
  one: (x, b) => (b === 1 ? x.relu() : x.abs()),
  belowFour: (x, b) => (b < 4 ? x.relu() : x.abs()),
  rest: (x, b) => x.mul(b - 1).div(b),
};

test('what follows from a size is right at every size that the trace takes', () => {
  const found = Object.entries(models).map(([name, body]) => {
    const cases = [1, 2, 3, 4, 6, 8, 13].map((example) => `${example}: ${taken(body, example)}`);
    return `${name} - ${cases.join('; ')}`;
  });
  expect(found).toMatchInlineSnapshot(`
    [
      "halfRoundedUp - 1: only 1; 2: all; 3: only 3; 4: all; 6: all; 8: all; 13: only 13",
      "half - 1: only 1; 2: all; 3: only 3; 4: all; 6: all; 8: all; 13: only 13",
      "square - 1: all; 2: all; 3: all; 4: all; 6: all; 8: all; 13: all",
      "pairs - 1: only 1; 2: only 2; 3: only 3; 4: only 4; 6: only 6; 8: only 8; 13: only 13",
      "atMostFive - 1: only 1; 2: only 2; 3: only 3; 4: only 4; 6: from 5; 8: from 5; 13: from 5",
      "atLeastEight - 1: only 1; 2: only 2; 3: only 3; 4: only 4; 6: only 6; 8: from 8; 13: from 8",
      "aboveSix - 1: only 1; 2: only 2; 3: only 3; 4: only 4; 6: only 6; 8: from 7; 13: from 7",
      "one - 1: only 1; 2: from 2; 3: from 2; 4: from 2; 6: from 2; 8: from 2; 13: from 2",
      "belowFour - 1: only 1; 2: only 2; 3: only 3; 4: from 4; 6: from 4; 8: from 4; 13: from 4",
      "rest - 1: all; 2: all; 3: all; 4: all; 6: all; 8: all; 13: all",
    ]
  `);
});

describe('sizes that a model cannot run at do not matter', () => {
  const works: Record<string, readonly [example: number, body: (x: Tensor, b: number) => Tensor]> = {
    'groups of 4': [8, (x, b) => x.view(b / 4, 8).mul(b)],
    'groups of 4, its own error': [
      4,
      (x, b) => {
        if (b % 4 !== 0) throw new Error('groups of 4');
        return x.mul(b);
      },
    ],
    'a table of 16': [4, (x, b) => x.add(ones([16, 2]).narrow(0, 0, b))],
    'at most 64, its own error': [
      4,
      (x, b) => {
        if (b > 64) throw new RangeError('at most 64');
        return x.mul(b);
      },
    ],
    'at least 2': [4, (x, b) => x.mul(b).narrow(0, 1, 1)],
    'a dimension that is gone at 1': [4, (x, b) => x.unsqueeze(1).squeeze().view(2, b).mul(b)],
  };
  test.each(Object.entries(works))('%s', (_, [example, body]) => {
    const model = new By(body);
    const { graph, state } = traceModule(model, [ones([example, 2])]);
    expect(graph.ranges).toEqual({ batch: { min: 1, max: null } });
    scope(() => {
      const x = randn(2 * example, 2);
      expect((new GraphModule(graph, state).forward(x) as Tensor).toArray()).toEqual(model.forward(x).toArray());
    });
  });

  test('normalisation of batches, in training and in evaluation', () => {
    for (const training of [true, false]) {
      const model = new nn.Sequential(new nn.Linear(2, 3), new nn.BatchNorm1d(3)).train(training);
      expect(traceModule(model, [ones([4, 2])]).graph.ranges).toEqual({ batch: { min: 1, max: null } });
    }
  });
});

test('a bound that was proven is held, also where it is 2, and it prints', () => {
  const { graph, state } = traceModule(new By(models['one']!), [ones([4, 2])]);
  expect(formatGraph(graph).split('\n')[0]).toBe('graph(%x: float32[batch, 2]) where 2 <= batch <= inf');
  expect(() => new GraphModule(graph, state).forward(ones([1, 2]))).toThrow(
    /^GraphModule.forward: batch \(dimension 0 of input 'x'\) is 1, but must be at least 2$/,
  );
});

test('several symbols have bounds of their own', () => {
  class Two extends nn.Module {
    forward(x: Tensor): Tensor {
      const [b, t] = x.shape as [number, number];
      return t < 3 ? x.add(b) : x.mul(b * t);
    }
  }
  const free = { dynamicShapes: [{ 0: 'batch', 1: 'time' }] };
  expect(traceModule(new Two(), [ones([4, 8])], free).graph.ranges).toEqual({
    batch: { min: 1, max: null },
    time: { min: 3, max: null, strict: true },
  });
  class Together extends nn.Module {
    forward(x: Tensor): Tensor {
      const [b, t] = x.shape as [number, number];
      return b * t < 4 ? x.add(b) : x.mul(b * t);
    }
  }
  expect(() => traceModule(new Together(), [ones([4, 8])], free)).toThrow(
    /does aten::mul.* at batch 4 and time 8, but aten::add.* at batch 1 and time 1: what it computes depends on the size/,
  );
});

test('what is computed, because operators have no meta kernel, is checked too', () => {
  const free = { mode: 'real', dynamicShapes: [{ 0: 'batch' }] } as const;
  expect(() => traceModule(new By(models['aboveSix']!), [ones([3, 2])], free)).toThrow(/at batch 7/);
});
