/** @file Splitting: what each stage gets, gives and holds; the pipe against the unsplit model. */
import { float64, liveTensors, nn, noGrad, ones, randn, scope, type Tensor, tensor, zeros } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { Block, Chain, expectClose, expectEqual, shape } from '../../testing/pipes.ts';
import {
  annotateSplitPoints,
  cutAtModules,
  type Graph,
  GraphBuilder,
  GraphModule,
  MultiUseParameterConfig,
  PipeSequential,
  pipeline,
  pipeSplit,
  pipeSplitOp,
  SplitPoint,
  splitGraph,
  traceModule,
} from '../index.ts';

const x = randn(2, 4, { dtype: float64 });

describe('borders', () => {
  test('before and after modules by name, without changing the model', () => {
    const model = new Chain().double();
    const pipe = expectEqual(model, [x], {
      splitSpec: { 'layers.1': SplitPoint.BEGINNING, 'layers.2': SplitPoint.END },
    });
    expect(shape(pipe)).toMatchInlineSnapshot(`
      [
        "x<in -> add>1 [layers.0.fc.weight layers.0.fc.bias]",
        "add<0 -> add_2>2 [layers.1.fc.weight layers.1.fc.bias layers.2.fc.weight layers.2.fc.bias]",
        "add_2<1 -> add_3> [layers.3.fc.weight layers.3.fc.bias]",
      ]
    `);
    expect(Object.hasOwn(model.layers.at(1), 'forward')).toBe(false);
    expect(pipe.notes).toEqual([]);
  });

  test('at the very start, at the very end and adjacent: no stage is lost, numbers have no holes', () => {
    const model = new Chain().double();
    const spec = {
      'layers.0': SplitPoint.BEGINNING,
      'layers.1': SplitPoint.END,
      'layers.2': SplitPoint.BEGINNING,
      'layers.3': SplitPoint.END,
    };
    const pipe = expectEqual(model, [x], { splitSpec: spec });
    expect(pipe.numStages).toBe(2);
    expect(pipe.split.stages.map(({ name }) => name)).toEqual(['submod_pp_0', 'submod_pp_1']);
    expect(pipe.notes.length).toBe(3);
    expect(
      pipe
        .getStageModule(1)
        .namedParameters()
        .map(([name]) => name),
    ).toEqual(['layers.2.fc.weight', 'layers.2.fc.bias', 'layers.3.fc.weight', 'layers.3.fc.bias']);
  });

  test('annotations are idempotent and can be taken away', () => {
    const model = new Chain().double();
    const first = annotateSplitPoints(model, { 'layers.2': SplitPoint.BEGINNING });
    const second = annotateSplitPoints(model, { 'layers.2': SplitPoint.BEGINNING });
    expect(scope(() => (model.forward(x) as Tensor).shape)).toEqual([2, 4]); // and it still runs
    expect(pipeline(model, { mbArgs: [x] }).numStages).toBe(2);
    second.remove();
    expect(pipeline(model, { mbArgs: [x] }).numStages).toBe(2);
    first.remove();
    expect(pipeline(model, { mbArgs: [x] }).numStages).toBe(1);
  });

  test('marks in code, a Sequential, a policy, and none', () => {
    class Marked extends nn.Module {
      a = new Block();
      b = new Block();
      forward(y: Tensor): Tensor {
        const first = this.a.forward(y);
        pipeSplit();
        return this.b.forward(first);
      }
    }
    expect(expectEqual(new Marked().double(), [x], {}).numStages).toBe(2);
    const sequential = new nn.Sequential(new nn.Linear(4, 4), new nn.Tanh(), new nn.Linear(4, 2)).double();
    const piped = PipeSequential.fromSequential(sequential);
    expect(expectEqual(piped, [x], {}).numStages).toBe(3);
    expect(scope(() => piped.forward(x).toArray())).toEqual(scope(() => sequential.forward(x).toArray()));
    expect(piped.namedParameters().map(([name]) => name)).toEqual(sequential.namedParameters().map(([name]) => name));
    const policy = (graph: Graph): Graph => cutAtModules(graph, { 'layers.3': SplitPoint.BEGINNING });
    expect(expectEqual(new Chain().double(), [x], { splitPolicy: policy }).numStages).toBe(2);
    expect(expectEqual(new Chain().double(), [x], {}).numStages).toBe(1);
  });

  test('a module that is called several times ends a stage each time', () => {
    class Loop extends nn.Module {
      block = new Block();
      forward(y: Tensor): Tensor {
        return this.block.forward(this.block.forward(this.block.forward(y)));
      }
    }
    const model = new Loop().double();
    const spec = { block: SplitPoint.BEGINNING };
    const pipe = expectEqual(model, [x], { splitSpec: spec });
    expect(pipe.numStages).toBe(3);
    expect(pipe.replicatedParams.map(({ name, stages }) => [name, [...stages.keys()]])).toEqual([
      ['block.fc.weight', [0, 1, 2]],
      ['block.fc.bias', [0, 1, 2]],
    ]);
    expect(splitGraph(cutAtModules(traceModule(model, [x]).graph, spec)).stages.length).toBe(3);
  });

  test('a stage that nobody needs is joined with the next', () => {
    class Useless extends nn.Module {
      a = new Block();
      b = new Block();
      forward(y: Tensor): Tensor {
        pipeSplit();
        const z = this.a.forward(y);
        pipeSplit();
        this.b.forward(y);
        pipeSplit();
        return z.mul(2);
      }
    }
    const pipe = expectEqual(new Useless().double(), [x], {});
    expect(pipe.numStages).toBe(2);
    expect(pipe.notes).toContain('stage 1 computes nothing that other stages use; it is joined with the next');
  });

  test('mistakes are named', () => {
    const model = new Chain();
    expect(() => pipeline(model, { mbArgs: [ones([2, 4])], splitSpec: { 'layer.1': SplitPoint.END } })).toThrow(
      /no module 'layer.1' \(did you mean 'layers.1'/,
    );
    expect(() => pipeline(model, { mbArgs: [ones([2, 4])], splitSpec: { 'layers.1': 'middle' as never } })).toThrow(
      /the split point of 'layers.1' is 'middle'/,
    );
    expect(() => pipeline(model, { mbArgs: [ones([2, 4])], splitSpec: {}, stages: 2 })).toThrow(
      /splitSpec and stages are given; give one/,
    );
    expect(() => pipeline(model, { splitSpec: {} })).toThrow(/mbArgs is undefined/);
    expect(() => pipeline(model, { mbArgs: [ones([2, 4])], splitSpec: { layers: SplitPoint.END } })).toThrow(
      /'layers' \(ModuleList\) is never called/,
    );
    expect(() => pipeline(model, { mbArgs: [ones([2, 4])], stage: 2 } as never)).toThrow(/unknown option 'stage'/);
    expect(() => pipeline(traceModule(model, [ones([2, 4])]), { splitSpec: { 'layers.9': SplitPoint.END } })).toThrow(
      /the graph has no module 'layers.9' \(did you mean 'layers/,
    );
    expect(() => pipeline(3 as never, {})).toThrow(/the first argument is a module, or a graph/);
    const pipe = pipeline(model, { mbArgs: [ones([2, 4])] });
    for (const bad of [-1, 1, 0.5, '0'])
      expect(() => pipe.getStageModule(bad as number)).toThrow(/there is no stage .*stages 0 to 0/);
  });
});

describe('values between stages', () => {
  test('skips, several users, inputs of later stages, outputs of earlier ones', () => {
    class Web extends nn.Module {
      a = new Block();
      b = new Block();
      c = new Block();
      forward(y: Tensor, late: Tensor): unknown {
        const one = this.a.forward(y);
        pipeSplit();
        const two = this.b.forward(one);
        pipeSplit();
        const three = this.c.forward(two.add(one).add(late));
        pipeSplit();
        return { sum: three.add(one).mul(y), early: one, late, parts: [two] };
      }
    }
    const pipe = expectEqual(new Web().double(), [x, x.mul(2)], {});
    expect(shape(pipe)).toMatchInlineSnapshot(`
      [
        "y<in -> add>1,2,3 [a.fc.weight a.fc.bias]",
        "add<0 -> add_1>2 [b.fc.weight b.fc.bias]",
        "add_1<1 add<0 late<in -> add_4>3 [c.fc.weight c.fc.bias]",
        "add_4<2 add<0 y<in -> mul> []",
      ]
    `);
    expect(pipe.info().edges).toEqual([
      [0, 1],
      [0, 2],
      [1, 2],
      [0, 3],
      [1, 3],
      [2, 3],
    ]);
    expect(pipe.printReadable()).toMatchInlineSnapshot(`
      "graph(%y: float64[batch, 4], %late: float64[batch, 4]) where 1 <= batch <= inf
        %submod_pp_0: float64[batch, 4] = module submod_pp_0(%y)
        %submod_pp_1: float64[batch, 4] = module submod_pp_1(%submod_pp_0)
        %submod_pp_2: float64[batch, 4] = module submod_pp_2(%submod_pp_1, %submod_pp_0, %late)
        %submod_pp_3: float64[batch, 4] = module submod_pp_3(%submod_pp_2, %submod_pp_0, %y)
        return {sum: %submod_pp_3, early: %submod_pp_0, late: %late, parts: [%submod_pp_1]}"
    `);
  });

  test('lists are taken apart where they were made', () => {
    class Lists extends nn.Module {
      a = new nn.Linear(4, 8);
      forward(y: Tensor): Tensor {
        const parts = this.a.forward(y).split(4, 1) as [Tensor, Tensor];
        pipeSplit();
        return parts[1].mul(parts[0]);
      }
    }
    const pipe = expectEqual(new Lists().double(), [x], {});
    expect(pipe.getStageModule(0).graph.nodes.filter((node) => node.kind === 'element').length).toBe(2);
  });

  test('changes in place of what another stage made, through views too', () => {
    class Changes extends nn.Module {
      a = new nn.Linear(4, 4);
      forward(y: Tensor): unknown {
        const one = this.a.forward(y);
        const row = one.select(0, 0);
        const flat = one.view(-1);
        pipeSplit();
        row.mul_(3);
        one.relu_();
        pipeSplit();
        return [flat.exp(), one.mul(1), row.add(1)];
      }
    }
    expectEqual(new Changes().double(), [x], {});
    class Entry extends nn.Module {
      a = new nn.Linear(4, 4);
      act = new nn.ReLU({ inplace: true });
      forward(y: Tensor): Tensor {
        const one = this.a.forward(y);
        pipeSplit();
        return this.act.forward(one).sum();
      }
    }
    expectEqual(new Entry().double(), [x], {});
  });

  test('regions are divided at borders', () => {
    class Region extends nn.Module {
      a = new Block();
      b = new Block();
      forward(y: Tensor): unknown {
        const [one, two] = noGrad(() => {
          const first = this.a.forward(y);
          pipeSplit();
          return [first, this.b.forward(first)] as const;
        });
        pipeSplit();
        return [two.mul(this.a.forward(y)), one];
      }
    }
    const pipe = expectEqual(new Region().double(), [x], {});
    expect(pipe.numStages).toBe(3);
    for (const stage of [0, 1])
      expect(Object.keys(pipe.getStageModule(stage).graph.graphs ?? {}).length, `stage ${stage}`).toBe(1);
    expect(pipe.getStageModule(2).graph.graphs).toBeUndefined();
  });

  test('sizes are read again where they are needed', () => {
    class Sizes extends nn.Module {
      a = new nn.Linear(4, 4);
      forward(y: Tensor): Tensor {
        const [b] = y.shape as [number];
        const one = this.a.forward(y).sum(0);
        pipeSplit();
        return one.div(b).add(zeros([b, 4], { dtype: float64 }));
      }
    }
    const model = new Sizes().double();
    const pipe = expectEqual(model, [x], {});
    const other = randn(5, 4, { dtype: float64 });
    expect(scope(() => (pipe.forward(other) as Tensor).toArray())).toEqual(scope(() => model.forward(other).toArray()));
    const scalars = pipe.split.stages[1]?.inputs.filter(({ meta }) => meta !== null && 'scalar' in meta);
    expect(scalars?.length).toBe(1); // nothing that arrives has this size: the number itself travels
    class Local extends nn.Module {
      a = new nn.Linear(4, 4);
      forward(y: Tensor): Tensor {
        const [b] = y.shape as [number];
        const one = this.a.forward(y);
        pipeSplit();
        return one.add(zeros([2 * b, 4], { dtype: float64 }).narrow(0, 0, b));
      }
    }
    const local = expectEqual(new Local().double(), [x], {});
    expect(local.split.stages[1]?.inputs.map(({ name }) => name)).toEqual(['linear']);
  });
});

describe('state', () => {
  class Tied extends nn.Module {
    embed = new nn.Embedding(6, 4);
    mid = new Block();
    head = new nn.Linear(4, 6, { bias: false });
    constructor() {
      super();
      this.head.weight = this.embed.weight;
    }
    forward(ids: Tensor): Tensor {
      const one = this.embed.forward(ids);
      pipeSplit();
      const two = this.mid.forward(one);
      pipeSplit();
      return this.head.forward(two);
    }
  }
  const ids = tensor([
    [0, 5, 2],
    [1, 1, 3],
  ]);

  test('tied parameters are replicated: copies of their own, tied by name', () => {
    const model = new Tied().double();
    const pipe = expectEqual(model, [ids], {});
    expect(pipe.info().wiring.map(({ ties }) => ties)).toEqual([
      { 'embed.weight': 'embed.weight' },
      {},
      { 'head.weight': 'embed.weight' },
    ]);
    const [first, last] = [
      pipe.getStageModule(0).getParameter('embed.weight'),
      pipe.getStageModule(2).getParameter('head.weight'),
    ];
    expect(first).toBe(model.embed.weight);
    expect(last).not.toBe(first);
    expect(last.toArray()).toEqual(first.toArray());
  });

  test('or sent, when asked', () => {
    const model = new Tied().double();
    const pipe = expectEqual(model, [ids], { multiUse: MultiUseParameterConfig.TRANSMIT });
    expect(pipe.replicatedParams).toEqual([]);
    expect(shape(pipe)).toMatchInlineSnapshot(`
      [
        "ids<in -> embedding>1 embed_weight>2 [embed.weight]",
        "embedding<0 -> add>2 [mid.fc.weight mid.fc.bias]",
        "add<1 embed_weight<0 -> linear_1> []",
      ]
    `);
    const named = expectEqual(model, [ids], { multiUse: { 'embed.weight': 'transmit', 'head.weight': 'transmit' } });
    expect(shape(named)).toEqual(shape(pipe));
    expect(() => pipeline(model, { mbArgs: [ids], multiUse: 'copy' as never })).toThrow(/multiUse is 'copy'/);
  });

  test('buffers keep their flag and names; state dicts of the model fit', () => {
    class Buffers extends nn.Module {
      kept = new nn.Buffer(ones([4], { dtype: float64 }));
      lost = new nn.Buffer(ones([4], { dtype: float64 }), { persistent: false });
      inner = new Block();
      forward(y: Tensor): Tensor {
        const one = y.add(this.lost).add(this.kept);
        pipeSplit();
        return this.inner.forward(one).mul(this.lost);
      }
    }
    const model = new Buffers().double();
    const pipe = expectEqual(model, [x], {});
    expect(pipe.split.stages.map((_, i) => [...pipe.getStageModule(i).stateDict().keys()])).toEqual([
      ['kept'],
      ['inner.fc.weight', 'inner.fc.bias'],
    ]);
    expect(
      pipe
        .getStageModule(1)
        .namedBuffers()
        .map(([name, buffer]) => [name, buffer.persistent]),
    ).toEqual([['lost', false]]);
  });

  test('a buffer that one stage changes and another uses is refused', () => {
    class Counter extends nn.Module {
      early = false;
      count = new nn.Buffer(zeros([1], { dtype: float64 }));
      forward(y: Tensor): Tensor {
        const one = this.early ? y.mul(2) : y.add(this.count);
        noGrad(() => (this.early ? this.count.add_(1) : null));
        pipeSplit();
        noGrad(() => (this.early ? null : this.count.add_(1)));
        return one.add(this.count);
      }
    }
    const early = new Counter();
    early.early = true;
    const sent = pipeline(early, { mbArgs: [x] }); // what stage 1 reads is what stage 0 sends
    expectClose(
      scope(() => (sent.forward(x) as Tensor).toArray()),
      scope(() => x.mul(2).add(1).toArray()),
    );
    expect(early.count.item()).toBe(1);
    expect(() => pipeline(new Counter(), { mbArgs: [x] })).toThrow(
      /stage 1 changes count in place, and stages 0, 1 use it/,
    );
  });

  test('nothing is left behind', () => {
    const model = new Tied().double();
    const before = liveTensors();
    const pipe = pipeline(model, { mbArgs: [ids] });
    expect(liveTensors()).toBe(before + 1); // the copy of the tied weight
    pipe.dispose();
  });
});

test('a graph that was not traced here', () => {
  const g = new GraphBuilder();
  const input = g.placeholder('x', { meta: { dtype: 'float64', shape: [2, 4] } });
  const weight = g.attribute('w');
  const one = g.call('aten::mm', [input, weight]);
  g.call(pipeSplitOp, []);
  g.output(g.call('aten::relu', [one]));
  const state = new Map([['w', new nn.Parameter(ones([4, 4], { dtype: float64 }))]]);
  const pipe = pipeline({ graph: g.build(), state }, {});
  expect(shape(pipe)).toEqual(['x<in -> mm>1 [w]', 'mm<0 -> relu> []']);
  expect(pipeline(new GraphModule(g.build(), state), {}).numStages).toBe(2);
  expect(() => pipeline({ graph: g.build(), state }, { mbArgs: [x] })).toThrow(/mbArgs is for modules that are traced/);
});
