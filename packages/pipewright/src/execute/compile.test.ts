/** @file How a program runs: what is freed when, what errors leave behind, and every kind of result and argument. */
import {
  AutogradFunction,
  type FunctionContext,
  liveTensors,
  nn,
  noGrad,
  ones,
  scope,
  Tensor,
  tensor,
  zeros,
} from '@pipewright/torch';
import { describe, expect, it } from 'vitest';
import { type Graph, GraphBuilder, GraphModule, type NodeReference, registerCustomFunction } from '../index.ts';

const meta = (...shape: number[]): { dtype: string; shape: number[] } => ({ dtype: 'float32', shape });
const run = (graph: Graph, ...inputs: unknown[]): unknown => new GraphModule(graph, new Map()).forward(...inputs);
const numbers = (x: unknown): unknown => (x instanceof Tensor ? x.toArray() : Array.isArray(x) ? x.map(numbers) : x);

/** Runs, and checks that only the results are left. */
function checked(graph: Graph, ...inputs: unknown[]): unknown {
  const before = liveTensors();
  const result = scope(() => numbers(run(graph, ...inputs)));
  expect(liveTensors()).toBe(before);
  return result;
}

describe('a program', () => {
  it('frees each value after its last use', () => {
    let most = 0;
    class Watch extends nn.Module {
      forward(x: Tensor): Tensor {
        most = Math.max(most, liveTensors());
        return x.relu();
      }
    }
    const g = new GraphBuilder();
    let y = g.placeholder('x', { meta: meta(2) });
    for (let i = 0; i < 20; i++) y = g.callModule('watch', [g.call('aten::exp', [y])], { meta: meta(2) });
    g.output(y);
    const model = new GraphModule(g.build(), new Map(), { modules: new Map([['watch', new Watch()]]) });
    const x = zeros([2]);
    const before = liveTensors();
    noGrad(() => scope(() => void model.forward(x)));
    expect(most - before).toBe(2); // the argument, and its handle for the module
    expect(liveTensors()).toBe(before);
  });

  it('leaves nothing behind after an error, and says where it was', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const [a, b] = [g.call('aten::exp', [x]), g.call('aten::split.Tensor', [x, 1])];
    const part = g.element(b, 1);
    const modules = [{ path: 'layers.3.attention', type: 'Attention' }];
    const bad = g.call('aten::mm', [a, part], { modules });
    g.output([bad, a, part]);
    const graph = g.build();
    const before = liveTensors();
    using input = ones([3]);
    expect(() => run(graph, input)).toThrow(
      /^node 'mm' \(aten::mm, from layers\.3\.attention\): mm: .*self must be a matrix/,
    );
    expect(liveTensors()).toBe(before + 1);
  });

  it('gives tensors that came from outside back as themselves', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const y = g.call('aten::relu', [x]);
    g.output([x, y, y, g.call('aten::add_.Tensor', [x, 1])]);
    scope(() => {
      const input = ones([2]);
      const [a, b, c, d] = run(g.build(), input) as Tensor[];
      expect([a === input, b === c, d === input]).toEqual([true, true, true]);
      expect(numbers(input)).toEqual([2, 2]);
    });
  });

  it('follows in-place operators', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const copy = g.call('aten::clone', [x]);
    const doubled = g.call('aten::mul_.Scalar', [copy, 2]);
    g.call('aten::add_.Tensor', [doubled, x]);
    g.output(g.call('aten::add.Tensor', [doubled, copy]));
    expect(checked(g.build(), tensor([1.5, 2]))).toEqual([9, 12]);
  });

  it('lets an activation overwrite what a layer made, without gradients only', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x', { meta: meta(2, 2) });
    const [a, b] = [0, 1].map(() => g.call('aten::mm', [x, x], { meta: meta(2, 2) })) as [NodeReference, NodeReference];
    const only = g.call('aten::relu', [a], { meta: meta(2, 2) });
    const shared = g.call('aten::relu', [b], { meta: meta(2, 2) });
    const input = g.call('aten::relu', [x], { meta: meta(2, 2) });
    g.output([only, shared, b, input]);
    const model = new GraphModule(g.build(), new Map());
    const positive = [
      [1, 0],
      [0, 1],
    ];
    const before = liveTensors();
    scope(() => {
      const square = tensor([
        [1, -1],
        [0, 1],
      ]).to('float32');
      for (let i = 0; i < 3; i++) {
        const out = noGrad(() => model.forward(square)) as Tensor[];
        expect(out.map(numbers)).toEqual([
          positive,
          positive,
          [
            [1, -2],
            [0, 1],
          ],
          positive,
        ]);
      }
      expect(numbers(square)).toEqual([
        [1, -1],
        [0, 1],
      ]);
      const leaf = square.clone().requiresGrad_();
      const [y] = model.forward(leaf) as [Tensor];
      y.sum().backward();
      expect(numbers(leaf.grad)).toEqual([
        [2, 0],
        [-2, 2],
      ]);
    });
    expect(liveTensors()).toBe(before);
  });

  it('takes lists apart, and keeps those that are used whole', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const parts = g.call('aten::split.Tensor', [x, 1]);
    const again = g.call('aten::unbind.int', [x]);
    const whole = g.call('aten::cat', [parts]);
    const top = g.call('aten::max.dim', [g.call('aten::stack', [again, 0]), 0]);
    g.output({
      dict: { whole, second: g.element(again, 1), index: g.element(top, 1), same: g.element(top, 1), parts },
    });
    const graph = g.build();
    const before = liveTensors();
    using input = tensor([3.5, 1]);
    scope(() => {
      const out = run(graph, input) as Record<string, unknown>;
      expect(out['index']).toBe(out['same']);
      expect(Object.fromEntries(Object.entries(out).map(([key, value]) => [key, numbers(value)]))).toEqual({
        whole: [3.5, 1],
        second: 1,
        index: 0,
        same: 0,
        parts: [[3.5], [1]],
      });
    });
    expect(liveTensors()).toBe(before + 1);
  });

  it('drops results that nobody takes, numbers that look like handles among them', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const normed = g.call('aten::_batch_norm_impl_index', [
      x,
      null,
      null,
      null,
      null,
      true,
      { float: 0 },
      { float: 0 },
      false,
    ]);
    const scaled = g.call('aten::_choose_qparams_per_tensor', [x]);
    g.output([g.element(normed, 0), g.element(scaled, 1)]);
    const [y, zero] = checked(g.build(), tensor([[1.5], [2.5]])) as [unknown, number];
    expect(y).toEqual([[-1], [1]]);
    expect(Number.isInteger(zero)).toBe(true);
  });

  it('knows numbers: sizes, arithmetic, floats that are whole', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const n = g.call('aten::sym_size.int', [x, -1]);
    const half = g.call('scalar::truediv', [n, 2]);
    const int = g.call('aten::arange', [n]);
    g.output([
      n,
      half,
      g.call('aten::mul.Tensor', [int, half]),
      g.call('aten::full', [[n, 1], half]),
      g.call('aten::mul.Tensor', [int, { float: 2 }]),
      g.call('aten::mul.Tensor', [int, 2]),
      g.call('scalar::gt', [n, 3]),
    ]);
    const result = scope(() => {
      const out = run(g.build(), ones([4])) as unknown[];
      return out.map((value) => (value instanceof Tensor ? [value.dtype.name, numbers(value)] : value));
    });
    expect(result).toEqual([
      4,
      2,
      ['float32', [0, 2, 4, 6]],
      ['float32', [[2], [2], [2], [2]]],
      ['float32', [0, 2, 4, 6]],
      ['int64', [0, 2, 4, 6]],
      true,
    ]);
  });

  it('calls modules and custom functions, with gradients', () => {
    class Double extends AutogradFunction {
      static forward(_ctx: FunctionContext, x: Tensor): Tensor {
        return x.mul(2);
      }
      static backward(_ctx: FunctionContext, grad: Tensor): Tensor {
        return grad.mul(5); // not the truth, so that it shows
      }
    }
    class Named extends nn.Module {
      forward(x: Tensor, options: { scale: number }): Tensor[] {
        return [x.mul(options.scale), x];
      }
    }
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const two = g.call(registerCustomFunction(Double), [x]);
    const both = g.callModule('named', [two], { kwargs: { scale: { float: 3 } } });
    g.output(g.call('aten::add.Tensor', [g.element(both, 0), g.element(both, 1)]));
    const model = new GraphModule(g.build(), new Map(), { modules: new Map([['named', new Named()]]) });
    scope(() => {
      const input = ones([2]).requiresGrad_();
      const y = model.forward(input) as Tensor;
      expect(numbers(y)).toEqual([8, 8]);
      y.sum().backward();
      expect(numbers(input.grad)).toEqual([20, 20]);
    });
  });

  it('runs sub-graphs under their modes', () => {
    const body = new GraphBuilder();
    const inner = body.placeholder('a');
    body.output([body.call('aten::mul.Tensor', [inner, inner])]);
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const square = g.subgraph('square', body.build());
    const off = g.call('higher_order::wrap_with_set_grad_enabled', [false, square, x]);
    const again = g.call('higher_order::tag_activation_checkpoint', [square, x]);
    g.output([g.element(off, 0), g.element(again, 0)]);
    const before = liveTensors();
    scope(() => {
      const input = tensor([3, 4]).to('float32').detach().requiresGrad_();
      const [fixed, learned] = run(g.build(), input) as [Tensor, Tensor];
      expect([fixed.requiresGrad, learned.requiresGrad]).toEqual([false, true]);
      learned.sum().backward();
      expect(numbers(input.grad)).toEqual([6, 8]);
    });
    expect(liveTensors()).toBe(before);
  });

  it('names all that cannot be run, at once', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const a = g.call('aten::rleu', [x]);
    const b = g.call('aten::relu', [a, 1], { modules: [{ path: 'fc', type: 'Linear' }] });
    g.call('higher_order::flex_attention', [b]);
    g.call('python::os.system', [x]);
    g.call('scalar::nothing', [1, 2]);
    g.call('aten::relu', [{ dict: {} }]);
    g.output(g.call('aten::add.Tensor', [b, x], { kwargs: { alpah: 1 } }));
    expect(() => run(g.build(), ones([1]))).toThrowErrorMatchingInlineSnapshot(`
      [PipelineError: the graph cannot be run:
        node 'rleu': callOp: libtorch 2.15.0 has no operator 'aten::rleu' (did you mean 'aten::rrelu'?)
        node 'relu' (from fc): aten::relu takes 1 arguments (self), got 2
        node 'flex_attention': operator higher_order::flex_attention is not known; there are cond, run_if, while_loop, wrap_with_set_grad_enabled, wrap_with_autocast, tag_activation_checkpoint, map_impl, scan, associative_scan, invoke_subgraph, wrap, hints_wrap, wrap_activation_checkpoint, checkpoint, strict_mode, run_const_graph, nested_compile_region
        node 'os': os.system is a Python function, which cannot be run here; save program.run_decompositions(), which replaces what is made of operators of PyTorch, or export the model without it
        node 'nothing': unknown operator scalar::nothing; there are add, sub, mul, floordiv, mod, pow, truediv, neg, pos, eq, ne, lt, le, gt, ge, and, or, xor, lshift, rshift, not, trunc, floor, ceil, int, float, max, min, sqrt, ite
        node 'relu_1': an operator cannot take a dictionary
        node 'add': aten::add.Tensor: unknown argument 'alpah' (did you mean 'alpha'?); it takes self, other, alpha?]
    `);
  });

  it('checks what results are', () => {
    const g = new GraphBuilder();
    const x = g.placeholder('x');
    const parts = g.call('aten::split.Tensor', [x, 2]);
    g.output(g.element(parts, 3));
    const before = liveTensors();
    using input = ones([4]);
    expect(() => run(g.build(), input)).toThrow("'split' gave 2 results, but the graph takes its element 3");
    expect(liveTensors()).toBe(before + 1);
  });
});
