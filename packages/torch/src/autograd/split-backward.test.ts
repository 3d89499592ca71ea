import { describe, expect, test } from 'vitest';
import { expectClose, expectSame, gradOf, leakFree, onRoute, routes } from '../../testing/gradients.ts';
import { native } from '../addon/addon.ts';
import {
  AutogradFunction,
  backward,
  callOp,
  cat,
  dropout,
  embedding,
  type FunctionContext,
  float64,
  inputBackward,
  layerNorm,
  linear,
  liveTensors,
  manualSeed,
  ones,
  randint,
  randn,
  scaledDotProductAttention,
  scope,
  type Tensor,
  zeros,
} from '../index.ts';
import { liveCallbacks } from './callbacks.ts';

/** One stage: parameters, inputs, and what it computes. Built twice from the same seed. */
interface Stage {
  readonly parameters: readonly Tensor[];
  readonly inputs: readonly (Tensor | null)[];
  readonly outputs: () => Tensor[];
}

const param = (...shape: number[]): Tensor => randn(shape, { dtype: float64 }).mul(0.5).requiresGrad_();
const input = (...shape: number[]): Tensor => randn(shape, { dtype: float64 }).requiresGrad_();

function lstm(x: Tensor, weights: readonly Tensor[], hidden: number): Tensor {
  const [batch] = [x.size(1)];
  const start = zeros([1, batch, hidden], { dtype: float64 });
  return (
    callOp('aten::lstm.input', [x, [start, start], [...weights], true, 1, 0, true, false, false]) as Tensor[]
  )[0] as Tensor;
}

function attention(x: Tensor, qkv: Tensor, out: Tensor, heads: number): Tensor {
  const [b, t, c] = x.shape as [number, number, number];
  const parts = linear(x, qkv)
    .view(b, t, 3, heads, c / heads)
    .permute(2, 0, 3, 1, 4);
  const [q, k, v] = [0, 1, 2].map((i) => parts.select(0, i) as Tensor) as [Tensor, Tensor, Tensor];
  return linear(scaledDotProductAttention(q, k, v, { isCausal: true }).transpose(1, 2).reshape(b, t, c), out);
}

class Scale extends AutogradFunction {
  static forward(ctx: FunctionContext, x: Tensor, w: Tensor): Tensor {
    ctx.saveForBackward(x, w);
    return x.mul(w);
  }
  static backward(ctx: FunctionContext, g: Tensor): (Tensor | null)[] {
    const [x, w] = ctx.savedTensors as [Tensor, Tensor];
    return [ctx.needsInputGrad[0] === true ? g.mul(w) : null, ctx.needsInputGrad[1] === true ? g.mul(x) : null];
  }
}

const stages: Record<string, () => Stage> = {
  'a linear stack': () => {
    const [x, w1, b1, w2, b2] = [input(3, 4), param(5, 4), param(5), param(2, 5), param(2)];
    return { parameters: [w1, b1, w2, b2], inputs: [x], outputs: () => [linear(linear(x, w1, b1).relu(), w2, b2)] };
  },
  'one weight in two layers': () => {
    const [x, w] = [input(3, 4), param(4, 4)];
    return { parameters: [w], inputs: [x], outputs: () => [linear(linear(x, w).tanh(), w)] };
  },
  'one weight in every layer, and twice in one': () => {
    const [x, w, b] = [input(3, 4), param(4, 4), param(4)];
    return {
      parameters: [w, b],
      inputs: [x],
      outputs: () => [linear(linear(linear(x, w, b).tanh(), w, b).mul(linear(x, w)), w, b)],
    };
  },
  'a weight computed of others, used twice': () => {
    const [x, v, g] = [input(3, 4), param(4, 4), param(4, 1)];
    return {
      parameters: [v, g],
      inputs: [x],
      outputs: () => {
        const w = v.mul(g).div(v.square().sum(1, true).sqrt());
        return [linear(linear(x, w).tanh(), w)];
      },
    };
  },
  'residual connections and layer norm': () => {
    const [x, w1, w2, g, b] = [input(3, 4), param(8, 4), param(4, 8), param(4), param(4)];
    return {
      parameters: [w1, w2, g, b],
      inputs: [x],
      outputs: () => [x.add(linear(linear(layerNorm(x, [4], { weight: g, bias: b }), w1).relu(), w2))],
    };
  },
  'parallel branches': () => {
    const [x, w1, w2, w3] = [input(3, 4), param(4, 4), param(4, 4), param(4, 8)];
    return {
      parameters: [w1, w2, w3],
      inputs: [x],
      outputs: () => [linear(cat([linear(x, w1).tanh(), linear(x, w2).sigmoid()], 1), w3)],
    };
  },
  'a parameter added to the input': () => {
    const [x, p, w] = [input(3, 4), param(4), param(2, 4)];
    return { parameters: [p, w], inputs: [x], outputs: () => [linear(x.add(p), w)] };
  },
  'a parameter that never meets the input': () => {
    const [x, w, p, q] = [input(3, 4), param(4, 4), param(5), param(5)];
    return { parameters: [w, p, q], inputs: [x], outputs: () => [linear(x, w), p.mul(q).exp()] };
  },
  'several outputs, one of them without gradients': () => {
    const [x, w1, w2] = [input(3, 4), param(4, 4), param(2, 4)];
    return {
      parameters: [w1, w2],
      inputs: [x],
      outputs: () => {
        const y = linear(x, w1).tanh();
        return [y, linear(y, w2), y.argmax(1), x.mul(2)];
      },
    };
  },
  'several inputs, an integer one, an unused one, null': () => {
    const [x, y, z, w] = [input(3, 4), input(3, 4), input(2), param(4, 8)];
    const table = param(10, 4);
    const ids = randint(10, [3]);
    return {
      parameters: [w, table],
      inputs: [ids, x, null, y, z],
      outputs: () => [linear(cat([x.mul(y), embedding(table, ids).add(x)], 1), w)],
    };
  },
  'a first stage: only integers come in': () => {
    const [table, w] = [param(10, 4), param(4, 4)];
    const ids = randint(10, [3]);
    return { parameters: [table, w], inputs: [ids], outputs: () => [linear(embedding(table, ids), w).tanh()] };
  },
  'views and changes in place': () => {
    const [x, w, b] = [input(4, 4), param(4, 4), param(4)];
    return {
      parameters: [w, b],
      inputs: [x],
      outputs: () => {
        const y = linear(x, w).mul(2);
        (y.select(0, 1) as Tensor).mul_(b);
        y.narrow(1, 0, 2).add_(1);
        return [y.t().reshape(2, 8).exp()];
      },
    };
  },
  'a change in place of a view by a computed value': () => {
    const [x, w, b] = [input(4, 4), param(4, 4), param(2, 4)];
    return {
      parameters: [w, b],
      inputs: [x],
      outputs: () => {
        const y = linear(x, w);
        y.narrow(0, 0, 2).copy_(b.mul(x.narrow(0, 2, 2)));
        return [y.mul(w)];
      },
    };
  },
  dropout: () => {
    const [x, w1, w2] = [input(3, 8), param(8, 8), param(4, 8)];
    return { parameters: [w1, w2], inputs: [x], outputs: () => [linear(dropout(linear(x, w1), 0.3, true).relu(), w2)] };
  },
  'an attention block': () => {
    const [x, qkv, out, g, w1, w2] = [input(2, 5, 8), param(24, 8), param(8, 8), param(8), param(16, 8), param(8, 16)];
    return {
      parameters: [qkv, out, g, w1, w2],
      inputs: [x],
      outputs: () => {
        const y = x.add(attention(layerNorm(x, [8], { weight: g }), qkv, out, 2));
        return [y.add(linear(linear(layerNorm(y, [8], { weight: g }), w1).gelu(), w2))];
      },
    };
  },
  'an LSTM': () => {
    const [x, wi, wh, bi, bh] = [input(6, 2, 3), param(16, 3), param(16, 4), param(16), param(16)];
    return { parameters: [wi, wh, bi, bh], inputs: [x], outputs: () => [lstm(x, [wi, wh, bi, bh], 4)] };
  },
  'frozen parameters': () => {
    const [x, w1, w2, w3] = [input(3, 4), param(4, 4), param(4, 4).detach(), param(4, 4)];
    return { parameters: [w1, w2, w3], inputs: [x], outputs: () => [linear(linear(linear(x, w1), w2).tanh(), w3)] };
  },
  'all parameters frozen': () => {
    const [x, w] = [input(3, 4), param(4, 4).detach()];
    return { parameters: [w], inputs: [x], outputs: () => [linear(x, w).tanh()] };
  },
  'an output that is an input': () => {
    const [x, w] = [input(3, 4), param(4, 4)];
    return { parameters: [w], inputs: [x], outputs: () => [x, linear(x, w)] };
  },
  'the same input twice': () => {
    const [x, w] = [input(3, 4), param(4, 4)];
    return { parameters: [w], inputs: [x, x], outputs: () => [linear(x, w)] };
  },
  'a custom function': () => {
    const [x, w, v] = [input(3, 4), param(4), param(4)];
    return { parameters: [w, v], inputs: [x], outputs: () => [Scale.apply(Scale.apply(x, w).exp(), v)] };
  },
  'a loss': () => {
    const [x, w] = [input(3, 4), param(5, 4)];
    return {
      parameters: [w],
      inputs: [x],
      outputs: () => [
        linear(x, w)
          .crossEntropyLoss(randint(5, [3]))
          .reshape([]),
      ],
    };
  },
  convolutions: () => {
    const [x, w1, w2, g, b] = [input(2, 3, 6, 6), param(4, 3, 3, 3), param(4, 4, 3, 3), param(4), param(4)];
    return {
      parameters: [w1, w2, g, b],
      inputs: [x],
      outputs: () => {
        const y = callOp('aten::conv2d', [x, w1, null, [1, 1], [1, 1]]) as Tensor;
        const n = callOp('aten::batch_norm', [y, g, b, null, null, true, 0.1, 1e-5, false]) as Tensor;
        return [(callOp('aten::conv2d', [n.relu(), w2, b, [2, 2], [1, 1]]) as Tensor).add(1)];
      },
    };
  },
  'convolutions of volumes': () => {
    const [x, w1, w2, b] = [input(2, 2, 5, 5, 5), param(3, 2, 3, 3, 3), param(2, 3, 3, 3, 3), param(2)];
    return {
      parameters: [w1, w2, b],
      inputs: [x],
      outputs: () => {
        const y = callOp('aten::conv3d', [x, w1, null, [1, 1, 1], [1, 1, 1]]) as Tensor;
        return [callOp('aten::conv3d', [y.relu(), w2, b, [2, 2, 2], [1, 1, 1]]) as Tensor];
      },
    };
  },
};

/** A convolution's backward of one half is another call of oneDNN, which may add in another order. */
const roundsAnew = new Set(['convolutions', 'convolutions of volumes']);

function build(make: () => Stage): { stage: Stage; outputs: Tensor[]; gradients: (Tensor | null)[] } {
  manualSeed(11);
  const stage = make();
  const outputs = stage.outputs();
  const gradients = outputs.map((y) => (y.requiresGrad && y.dim() > 0 ? randn(y.shape, { dtype: y.dtype }) : null));
  return { stage, outputs, gradients };
}

describe.each(routes)('%s', (_, bridge) => {
  test.each(Object.entries(stages))('%s: what backward gives', (name, make) =>
    onRoute(bridge, () => {
      const expectEqual = roundsAnew.has(name) ? expectClose : expectSame;
      const plain = build(make);
      const kept = plain.outputs.flatMap((y, i) => (y.requiresGrad ? [[y, plain.gradients[i] ?? null] as const] : []));
      backward(
        kept.map(([y]) => y),
        { gradTensors: kept.map(([, g]) => g) },
      );

      const split = build(make);
      const { inputGrads, weights } = inputBackward({
        outputs: split.outputs,
        gradOutputs: split.gradients,
        inputs: split.stage.inputs,
      });
      for (const p of split.stage.parameters) expect(p.grad, 'the input half leaves parameters alone').toBe(null);
      split.stage.inputs.forEach((x, i) => {
        expectEqual(inputGrads[i] as Tensor | null, plain.stage.inputs[i]?.grad ?? null);
        expect(x?.grad ?? null, 'inputs accumulate nothing').toBe(null);
      });
      weights.run();
      split.stage.parameters.forEach((p, i) => expectEqual(p.grad, (plain.stage.parameters[i] as Tensor).grad));
      expect(weights.isPending).toBe(false);
    }),
  );
});

test('microbatches one after the other, weights later', () =>
  leakFree(() => {
    const w = param(4, 4);
    const xs = Array.from({ length: 4 }, () => input(2, 4));
    const halves = xs.map((x) => inputBackward({ outputs: linear(x, w).tanh().sum(), inputs: [x] }));
    expect(w.grad).toBe(null);
    for (const { weights } of halves) weights.run();
    const found = w.grad;
    w.grad = null;
    for (const x of xs) linear(x, w).tanh().sum().backward();
    expectSame(found, w.grad);
  }));

test('hooks run once: on inputs, on computed tensors, on parameters', () =>
  leakFree(() => {
    const [x, w1, w2] = [input(2, 3), param(3, 3), param(3, 3)];
    const counts = { x: 0, y: 0, w: 0, after: 0 };
    x.registerHook((g) => {
      counts.x++;
      return g.mul(2);
    });
    w1.registerHook((g) => {
      counts.w++;
      return g.mul(3);
    });
    w1.registerPostAccumulateGradHook(() => {
      counts.after++;
    });
    const run = (): Tensor => {
      const y = linear(x, w1);
      y.registerHook((g) => {
        counts.y++;
        return g.mul(5);
      });
      y.retainGrad();
      held = y;
      return linear(y, w2).sum();
    };
    let held = x;
    run().backward();
    const wanted = [x.grad, w1.grad, w2.grad, held.grad] as const;
    for (const t of [x, w1, w2]) t.grad = null;
    const { inputGrads, weights } = inputBackward({ outputs: run(), inputs: [x] });
    weights.run();
    expect(counts).toEqual({ x: 2, y: 2, w: 2, after: 2 });
    [inputGrads[0]!, w1.grad, w2.grad, held.grad].forEach((g, i) => expectSame(g!, wanted[i]!));
  }));

test('an input that was computed, with a hook and a second result of the same node', () =>
  leakFree(() => {
    const [z, w] = [input(4, 4), param(2, 4)];
    const [a, b] = z.mul(1).split(2) as [Tensor, Tensor];
    let calls = 0;
    a.registerHook((g) => {
      calls++;
      return g.mul(10);
    });
    const { inputGrads, weights } = inputBackward({ outputs: linear(a, w).add(linear(b, w)).sum(), inputs: [a] });
    weights.run();
    expect(calls).toBe(1);
    const column = w.detach().sum(0).mul(10).toArray();
    expect(inputGrads[0]?.toArray()).toEqual([column, column]);
    const plain = w.detach().sum(0).toArray();
    expect(gradOf(z)).toEqual([[0, 0, 0, 0], [0, 0, 0, 0], plain, plain]); // through b, which is no input
  }));

test('dropped or run once', () =>
  leakFree(() => {
    const [x, w] = [input(2, 3), param(3, 3)];
    const first = inputBackward({ outputs: linear(x, w).sum(), inputs: [x] });
    first.weights.drop();
    first.weights.drop();
    expect(() => first.weights.run()).toThrow(/run or dropped already/);
    expect(w.grad).toBe(null);
    const second = inputBackward({ outputs: linear(x, w).sum(), inputs: [x] });
    second.weights.run();
    expect(() => second.weights.run()).toThrow(/run or dropped already/);
  }));

test('the input half frees what only it needed', () =>
  leakFree(() => {
    const x = randn([128, 128]).requiresGrad_();
    const w = randn([128, 128]).requiresGrad_();
    const bytes = 128 * 128 * 4;
    const y = scope(() => {
      let value = linear(x, w);
      for (let i = 0; i < 10; i++) value = value.sin();
      return value;
    });
    const before = native.liveBytes();
    const { weights, inputGrads } = inputBackward({ outputs: y, gradOutputs: [ones([128, 128])], inputs: [x] });
    const between = native.liveBytes();
    expect(before - between).toBeGreaterThan(6 * bytes);
    weights.run();
    inputGrads[0]?.dispose();
    expect(native.liveBytes() - before).toBeLessThan(-7 * bytes);
  }));

test('an error in the input half leaves the graph as it was', () =>
  leakFree(() => {
    const [x, w] = [input(2, 3), param(3, 3)];
    const y = linear(x, w).tanh();
    let stop = true;
    y.registerHook(() => {
      if (stop) throw new Error('not yet');
    });
    const z = y.sum();
    expect(() => inputBackward({ outputs: z, inputs: [x] })).toThrow('not yet');
    stop = false;
    z.backward();
    const wanted = [x.grad, w.grad] as const;
    [x.grad, w.grad] = [null, null];
    linear(x, w).tanh().sum().backward();
    expectSame(wanted[0], x.grad);
    expectSame(wanted[1], w.grad);
  }));

test('arguments are checked', () => {
  scope(() => {
    const [x, w] = [input(2, 3), param(3, 3)];
    expect(() => inputBackward({ outputs: linear(x, w), inputs: [x] })).toThrow(/only a scalar needs no gradient/);
    expect(() => inputBackward({ outputs: [x.sum()], gradOutputs: [], inputs: [x] })).toThrow(
      /0 gradients for 1 outputs/,
    );
    expect(() => inputBackward({ outputs: [x.sum()], inputs: [3 as never] })).toThrow(/inputs\[0\] is not a tensor/);
    expect(() => inputBackward({ output: x } as never)).toThrow(/unknown option 'output'/);
    const nothing = inputBackward({ outputs: [x.detach().sum()], inputs: [x] });
    expect(nothing.inputGrads).toEqual([null]);
    nothing.weights.run();
  });
  expect(liveCallbacks()).toBe(0);
});

test('a thousand halves leave nothing', () =>
  leakFree(() => {
    const [x, w] = [input(4, 4), param(4, 4)];
    scope(() => inputBackward({ outputs: linear(x, w).sum(), inputs: [x] }).weights.run());
    const before = liveTensors();
    for (let i = 0; i < 1000; i++) {
      scope(() => {
        const { weights } = inputBackward({ outputs: linear(x, w).tanh().sum(), inputs: [x] });
        if (i % 2 === 0) weights.run();
        else weights.drop();
      });
    }
    expect(liveTensors()).toBe(before);
  }));
