/** @file A traced model against the model itself: the same outputs, gradients and buffers, at other sizes too. */
import {
  AutogradFunction,
  arange,
  autocast,
  checkpoint,
  type FunctionContext,
  float64,
  full,
  int64,
  liveTensors,
  manualSeed,
  nn,
  noGrad,
  ones,
  rand,
  randn,
  scaledDotProductAttention,
  scope,
  softmax,
  stack,
  Tensor,
  tensor,
  zeros,
} from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { flatten, tensorsIn } from '../base/tree.ts';
import { formatGraph, GraphModule, type GraphNode, type TraceOptions, traceModule } from '../index.ts';

type Model = nn.Module & { forward(...args: never[]): unknown };

/** What a model gives and what its backward leaves, as plain numbers. */
function behaviour(model: Model, args: readonly unknown[], parameters: readonly Tensor[]): unknown {
  return scope(() => {
    manualSeed(1);
    for (const parameter of parameters) parameter.grad = null;
    const inputs = args.map((arg) =>
      arg instanceof Tensor ? arg.detach().clone().requiresGrad_(arg.isFloatingPoint()) : arg,
    );
    const result = (model.forward as (...given: unknown[]) => unknown)(...inputs);
    const outputs = tensorsIn(result).filter((each) => each.requiresGrad);
    const { leaves, spec } = flatten(result);
    const values = leaves.map((leaf) => (leaf instanceof Tensor ? leaf.detach().toArray() : leaf));
    if (outputs.length > 0)
      stack(outputs.map((each) => each.mul(each.detach().add(1)).sum().to(float64)))
        .sum()
        .backward();
    const gradOf = (each: unknown): unknown => (each instanceof Tensor ? (each.grad?.toArray() ?? null) : null);
    return { spec, values, inputs: inputs.map(gradOf), parameters: parameters.map(gradOf) };
  });
}

/** Traces a model and compares both on the example and on other arguments. */
function expectSame(
  model: Model,
  args: readonly unknown[],
  options: { other?: readonly unknown[]; trace?: TraceOptions } = {},
): GraphModule {
  const program = traceModule(model, args, options.trace);
  const module = new GraphModule(program.graph, program.state);
  const parameters = model.parameters();
  for (const given of [args, ...(options.other === undefined ? [] : [options.other])]) {
    const buffers = model.namedBuffers().map(([, buffer]) => buffer);
    const before = noGrad(() => buffers.map((buffer) => buffer.clone()));
    const want = behaviour(model, given, parameters);
    const after = buffers.map((buffer) => buffer.toArray());
    noGrad(() => buffers.forEach((buffer, i) => buffer.copy_(before[i] as Tensor)));
    expect(behaviour(module as unknown as Model, given, parameters)).toEqual(want);
    expect(buffers.map((buffer) => buffer.toArray())).toEqual(after);
  }
  return module;
}

const calls = (nodes: readonly GraphNode[]): string[] =>
  nodes.flatMap((node) => (node.kind === 'call' ? [node.op] : []));

class Mlp extends nn.Module {
  fc1 = new nn.Linear(4, 8);
  fc2 = new nn.Linear(8, 4);

  forward(x: Tensor): Tensor {
    return x.add(this.fc2.forward(this.fc1.forward(x).relu()));
  }
}

class Attention extends nn.Module {
  qkv = new nn.Linear(8, 24);
  out = new nn.Linear(8, 8);

  forward(x: Tensor): Tensor {
    const [b, t, c] = x.shape as [number, number, number];
    const heads = (y: Tensor): Tensor => y.view(b, t, 2, c / 2).transpose(1, 2);
    const [q, k, v] = this.qkv.forward(x).split(c, -1).map(heads) as [Tensor, Tensor, Tensor];
    const mask = arange(t, { device: x.device })
      .view(t, 1)
      .lt(arange(t, { device: x.device }));
    const scores = q
      .matmul(k.transpose(-1, -2))
      .mul(1 / Math.sqrt(t))
      .maskedFill(mask, -Infinity);
    return this.out.forward(softmax(scores, -1).matmul(v).transpose(1, 2).reshape(b, t, c));
  }
}

describe('trace', () => {
  test('gives a graph that prints', () => {
    const { graph, state, fixedBecause } = traceModule(new Mlp(), [zeros([2, 4])]);
    expect(formatGraph(graph)).toMatchInlineSnapshot(`
      "graph(%x: float32[batch, 4]) where 1 <= batch <= inf
        %fc1_weight: float32[8, 4] = parameter fc1.weight
        %fc1_bias: float32[8] = parameter fc1.bias
        %fc2_weight: float32[4, 8] = parameter fc2.weight
        %fc2_bias: float32[4] = parameter fc2.bias
        %linear: float32[batch, 8] = aten::linear(%x, %fc1_weight, %fc1_bias)  # fc1
        %relu: float32[batch, 8] = aten::relu(%linear)
        %linear_1: float32[batch, 4] = aten::linear(%relu, %fc2_weight, %fc2_bias)  # fc2
        %add: float32[batch, 4] = aten::add.Tensor(%x, %linear_1)
        return %add"
    `);
    expect([...state.keys()]).toEqual(['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias']);
    expect(fixedBecause).toBeNull();
  });

  test('leaves the module and memory as they were', () => {
    const model = new Mlp();
    const before = liveTensors();
    const text = model.toString();
    const state = traceModule(model, [zeros([2, 4])]).state;
    expect(state.get('fc1.weight')).toBe(model.fc1.weight);
    expect(model.toString()).toBe(text);
    expect(Object.hasOwn(model, 'forward')).toBe(false);
    expect(model.fc1.weight.grad).toBeNull();
    expect(liveTensors()).toBe(before + 1); // the example
  });

  test('the same results and gradients, at every batch size', () => {
    expectSame(new Mlp(), [randn(2, 4)], { other: [randn(5, 4)] });
    const module = expectSame(new Attention(), [randn(2, 3, 8)], { other: [randn(7, 3, 8)] });
    expect(() => module.forward(randn(2, 4, 8))).toThrow(/dimension 1 is 4, but the graph was made for 3/);
  });

  test('several free dimensions, and numbers that follow from them', () => {
    const options = { other: [randn(5, 7, 8)], trace: { dynamicShapes: [{ 0: 'batch', 1: 'time' }] } };
    const module = expectSame(new Attention(), [randn(2, 3, 8)], options);
    expect(calls(module.graph.nodes)).toContain('scalar::sqrt');
    expectSame(
      new (class extends nn.Module {
        forward(x: Tensor): unknown {
          const [b, t] = x.shape as [number, number];
          const half = Math.floor(t / 2);
          return [x.reshape(b * t), x.narrow(1, 0, half), x.sum().div(b), full([t + 1, 2 * b], 0.5), b, [t * t, { t }]];
        }
      })(),
      [randn(4, 6)],
      { other: [randn(3, 9)], trace: { dynamicShapes: [{ 0: 'batch', 1: 'time' }] } },
    );
  });

  test('trees in, trees out, constants fixed', () => {
    class Trees extends nn.Module {
      forward({ a, b }: { a: Tensor; b: [Tensor, number] }, flag: boolean): unknown {
        const sum = a.add(b[0]).mul(b[1]);
        return { sum: flag ? sum : a, pair: [a.mul(2), null, 'text', 1.5] };
      }
    }
    const args = [{ a: randn(2, 3), b: [randn(2, 3), 4] }, true];
    const module = expectSame(new Trees() as unknown as Model, args);
    expect(() => module.forward(args[0], false)).toThrow(/was true when the graph was made/);
    class Named extends nn.Module {
      forward(x: Tensor, options: { mask: Tensor }): Tensor {
        return x.mul(options.mask);
      }
    }
    const named = traceModule(new Named(), [randn(2, 3)], { kwargs: { mask: randn(2, 3) } });
    expect(named.graph.signature?.kwargs).toEqual({ mask: { ref: 'mask' } });
    expect(
      (new GraphModule(named.graph, named.state).forward(ones([4, 3]), { mask: ones([4, 3]) }) as Tensor).shape,
    ).toEqual([4, 3]);
  });

  test('tied and shared modules, constants, buffers that do not persist', () => {
    class Tied extends nn.Module {
      embed = new nn.Embedding(5, 4);
      head = new nn.Linear(4, 5, { bias: false });
      scale = tensor([2, 3, 4, 5], { dtype: 'float32' });
      cache = new nn.Buffer(ones([4]), { persistent: false });
      constructor() {
        super();
        this.head.weight = this.embed.weight;
      }
      forward(ids: Tensor): Tensor {
        const x = this.embed
          .forward(ids)
          .mul(this.scale)
          .add(this.cache)
          .add(tensor([1, 0, 0, 1]));
        return this.head.forward(this.head.forward(x).tanh().narrow(-1, 0, 4));
      }
    }
    const model = new Tied();
    const module = expectSame(model, [
      tensor([
        [0, 1],
        [2, 4],
      ]),
    ]);
    expect(
      module.graph.nodes.flatMap((node) => (node.kind === 'attribute' ? [[node.target, node.persistent ?? true]] : [])),
    ).toEqual([
      ['embed.weight', true],
      ['scale', false],
      ['cache', false],
      ['lifted_tensor_0', false],
      ['head.weight', true],
    ]);
    expect(module.getParameter('embed.weight')).toBe(module.getParameter('head.weight'));
    const paths = new Set(module.graph.nodes.flatMap((node) => node.modules?.at(-1)?.path ?? []));
    expect([...paths]).toEqual(['embed', '', 'head', 'head@1']);
  });

  test('parameters that no module has registered learn all the same', () => {
    const hidden = [new nn.Linear(4, 4)];
    class Hides extends nn.Module {
      forward(x: Tensor): Tensor {
        return (hidden[0] as nn.Linear).forward(x);
      }
    }
    const { graph, state } = traceModule(new Hides(), [randn(2, 4)]);
    expect(state.get('lifted_tensor_0')).toBe(hidden[0]?.weight);
    const module = new GraphModule(graph, state);
    scope(() => (module.forward(randn(3, 4)) as Tensor).sum().backward());
    expect(hidden[0]?.bias?.grad?.toArray()).toEqual([3, 3, 3, 3]);
  });

  test('changes in place and views', () => {
    class InPlace extends nn.Module {
      fc = new nn.Linear(4, 4);
      forward(x: Tensor): unknown {
        const y = this.fc.forward(x);
        const flat = y.view(-1);
        const row = y.select(0, 0);
        y.mul_(2);
        const a = flat.sum();
        row.add_(1);
        const b = flat.mul(3);
        y.at(0).mul_(0.5);
        const copy = y.t().reshape(-1);
        y.add_(10);
        const [left, right] = y.chunk(2, 1) as [Tensor, Tensor];
        const out = zeros([2, 4]);
        out.copy_(y);
        return { a, b, row: row.mul(1), flat: flat.exp(), copy: copy.mul(1), left, right: right.relu(), out };
      }
    }
    expectSame(new InPlace(), [randn(2, 4)]);
    class Quietly extends nn.Module {
      fc = new nn.Linear(4, 4);
      forward(x: Tensor): unknown {
        const y = this.fc.forward(x);
        const flat = y.view(-1);
        const mean = noGrad(() => {
          y.select(0, 0).mul_(2); // gradients of y flow on, though it is changed and seen without them
          return flat.abs().mean();
        });
        return [flat.mul(mean), y.exp()];
      }
    }
    expectSame(new Quietly(), [randn(2, 4)]);
    class Loudly extends nn.Module {
      fc = new nn.Linear(4, 4);
      forward(x: Tensor): unknown {
        const y = this.fc.forward(x);
        const z = noGrad(() => y.clone()); // made without gradients, which it is then given, through a view too
        z.set_([':', 0], 3);
        z.add_(y);
        const w = noGrad(() => y.clone());
        w.set_([':', 1], y.select(1, 2));
        return [z.exp(), w.mul(2)];
      }
    }
    expectSame(new Loudly(), [randn(2, 4)]);
    class Kept extends nn.Module {
      fc = new nn.Linear(4, 4);
      drop = new nn.Dropout(0.5);
      forward(x: Tensor): unknown {
        const y = this.fc.forward(x);
        const kept = y.tanh(); // its backward keeps the result, which is no view of y
        const dropped = this.drop.forward(y); // which is y itself in evaluation
        y.select(0, 0).add_(1);
        return [kept.mul(2), dropped.mul(2)];
      }
    }
    expectSame(new Kept(), [randn(2, 4)]);
    expectSame(new Kept().eval(), [randn(2, 4)]);
    class Relu extends nn.Module {
      seq = new nn.Sequential(new nn.Linear(4, 4), new nn.ReLU({ inplace: true }), new nn.Linear(4, 2));
      forward(x: Tensor): Tensor {
        return this.seq.forward(x);
      }
    }
    expectSame(new Relu(), [randn(3, 4)]);
  });

  test('batch normalisation and dropout in training', () => {
    const model = new nn.Sequential(
      new nn.Linear(4, 6),
      new nn.BatchNorm1d(6),
      new nn.Dropout(0.3),
      new nn.Linear(6, 2),
    );
    expectSame(model as unknown as Model, [randn(8, 4)]);
  });

  test('one graph for training and evaluation', () => {
    class Modes extends nn.Module {
      fc = new nn.Linear(4, 8);
      norm = new nn.BatchNorm1d(8);
      drop = new nn.Dropout(0.5);
      noise = new nn.RReLU();
      forward(x: Tensor): Tensor {
        const y = this.noise.forward(this.drop.forward(this.norm.forward(this.fc.forward(x))));
        const q = y.view(1, 1, -1, 8);
        return scaledDotProductAttention(q, q, q, { dropoutP: this.training ? 0.4 : 0 });
      }
    }
    for (const traced of [true, false]) {
      const model = new Modes().train(traced);
      const program = traceModule(model, [randn(6, 4)]);
      expect(program.bothModes).toBe(true);
      expect(model.modules().every((part) => part.training === traced)).toBe(true);
      const module = new GraphModule(program.graph, program.state);
      for (const mode of [true, false, true]) {
        const x = randn(3, 4);
        model.train(mode);
        module.train(mode);
        const state = (): unknown => model.buffers().map((buffer) => buffer.toArray());
        const before = noGrad(() => model.buffers().map((buffer) => buffer.clone()));
        const want = [behaviour(model, [x], model.parameters()), state()];
        noGrad(() => model.buffers().forEach((buffer, i) => buffer.copy_(before[i] as Tensor)));
        expect([behaviour(module as unknown as Model, [x], model.parameters()), state()]).toEqual(want);
      }
    }
    class Other extends nn.Module {
      forward(x: Tensor): Tensor {
        return this.training ? x.add(rand(1)) : x.mul(2);
      }
    }
    for (const traced of [true, false]) {
      const { graph, bothModes } = traceModule(new Other().train(traced), [ones([2])]);
      expect(bothModes).toBe(false);
      expect(calls(graph.nodes)).toEqual(traced ? ['aten::rand', 'aten::add.Tensor'] : ['aten::mul.Scalar']);
    }
  });

  test('regions without gradients, recomputed, in mixed precision', () => {
    class Regions extends nn.Module {
      fc = new nn.Linear(4, 4);
      forward(x: Tensor): unknown {
        const scale = noGrad(() => this.fc.forward(x).abs().mean());
        const y = checkpoint((z: Tensor) => this.fc.forward(z).tanh().mul(rand(1).add(1)), [x]);
        const half = autocast({ dtype: 'bfloat16' }, () => this.fc.forward(y));
        return [y.div(scale), half, noGrad(() => [y.detach().exp(), y.detach().sin()])];
      }
    }
    const module = expectSame(new Regions(), [randn(3, 4)]);
    expect(calls(module.graph.nodes).filter((op) => op.startsWith('higher_order'))).toEqual([
      'higher_order::wrap_with_set_grad_enabled',
      'higher_order::tag_activation_checkpoint',
      'higher_order::wrap_with_autocast',
      'higher_order::wrap_with_set_grad_enabled',
    ]);
  });

  test('custom functions are nodes of their own', () => {
    class Cube extends AutogradFunction {
      static forward(ctx: FunctionContext, x: Tensor, factor: number): Tensor[] {
        ctx.saveForBackward(x);
        return [x.pow(3).mul(factor), x.detach().sign()];
      }
      static backward(ctx: FunctionContext, grad: Tensor): (Tensor | null)[] {
        const [x] = ctx.savedTensors as [Tensor];
        return [grad.mul(x.square()).mul(7), null]; // not the true factor: backward must be this one
      }
    }
    class Custom extends nn.Module {
      fc = new nn.Linear(4, 4);
      forward(x: Tensor): Tensor {
        const [y] = Cube.apply(this.fc.forward(x), 2) as [Tensor];
        return y.sum();
      }
    }
    const module = expectSame(new Custom(), [randn(2, 4)]);
    expect(calls(module.graph.nodes)).toContain('function::Cube');
  });

  test('hooks on activations are traced, hooks on gradients are refused', () => {
    const model = new Mlp();
    const handle = model.fc1.registerForwardHook((_module, _inputs, output) => (output as Tensor).mul(2));
    expectSame(model, [randn(2, 4)]);
    model.fc1.registerFullBackwardHook(() => undefined);
    expect(() => traceModule(model, [randn(2, 4)])).toThrow(
      /ModuleHook.*belongs to one call only.*add them to the stages/s,
    );
    handle.remove();
  });

  test('operators without a meta kernel are computed, and nothing stays changed', () => {
    class Real extends nn.Module {
      norm = new nn.BatchNorm1d(4);
      forward(x: Tensor): Tensor {
        return this.norm.forward(x).add(rand(1));
      }
    }
    const model = new Real();
    manualSeed(3);
    const want = rand(1).item();
    manualSeed(3);
    const { graph } = traceModule(model, [randn(4, 4).mul(0).add(2)], { mode: 'real' });
    expect(calls(graph.nodes)).toContain('aten::batch_norm');
    expect(model.norm.runningMean?.toArray()).toEqual([0, 0, 0, 0]);
    expect(model.norm.numBatchesTracked?.item()).toBe(0);
    manualSeed(3);
    traceModule(model, [zeros([4, 4])], { mode: 'real' });
    expect(rand(1).item()).toBe(want);
  });

  test('integer inputs and factories keep their device for later', () => {
    class Position extends nn.Module {
      embed = new nn.Embedding(8, 4);
      forward(ids: Tensor): Tensor {
        return this.embed
          .forward(ids)
          .add(arange(ids.size(1)).unsqueeze(-1))
          .add(zeros([1], { dtype: 'float32' }));
      }
    }
    const { graph } = traceModule(new Position(), [zeros([2, 3], { dtype: int64 })]);
    const made = graph.nodes.flatMap((node) =>
      node.kind === 'call' && node.kwargs?.['device'] !== undefined ? [node.kwargs['device']] : [],
    );
    expect(made).toEqual([{ device: 'cpu' }, { device: 'cpu' }]);
  });
});
