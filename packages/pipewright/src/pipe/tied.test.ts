/** @file Modules and parameters that several stages use: their names, who owns them, and what is refused. */
import { nn, randn, scope, type Tensor } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { type MultiUseParamSpec, PipeSequential, pipeline, pipeSplit, SplitPoint, traceModule } from '../index.ts';

class Twice extends nn.Module {
  embed = new nn.Linear(4, 4, { bias: false });
  middle = new nn.Linear(4, 4);
  head = new nn.Linear(4, 4, { bias: false });

  constructor() {
    super();
    this.head.weight = this.embed.weight;
  }

  forward(x: Tensor): Tensor {
    const y = this.embed.forward(x);
    pipeSplit();
    const z = this.middle.forward(y);
    pipeSplit();
    return this.head.forward(z);
  }
}

describe('a Sequential that holds one module twice', () => {
  const shared = new nn.Linear(4, 4);
  const model = new nn.Sequential(shared, new nn.ReLU(), shared);
  const x = randn(2, 4);

  test('names the second use as the Sequential does', () => {
    const { graph } = traceModule(model, [x]);
    const paths = graph.nodes.flatMap(({ kind, modules }) => (kind === 'call' ? [modules?.at(-1)?.path] : []));
    expect(paths).toEqual(['0', '1', '2']);
    const attributes = graph.nodes.flatMap((node) => (node.kind === 'attribute' ? [node.target] : []));
    expect(attributes.sort()).toEqual(['0.bias', '0.weight', '2.bias', '2.weight']);
  });

  test('is cut at the use that is named, and its stages have the names of the state dict', () => {
    const pipe = pipeline(model, { mbArgs: [x], splitSpec: { '2': SplitPoint.BEGINNING } });
    expect(pipe.numStages).toBe(2);
    const names = [0, 1].map((i) => pipe.getStageModule(i).namedParameters().map(([name]) => name)); // biome-ignore format: one line
    expect(names).toEqual([
      ['0.weight', '0.bias'],
      ['2.weight', '2.bias'],
    ]);
    expect(pipe.replicatedParams.map(({ name, stages }) => [name, [...stages]])).toEqual([
      ['0.weight', [[0, ['0.weight']], [1, ['2.weight']]]],
      ['0.bias', [[0, ['0.bias']], [1, ['2.bias']]]],
    ]); // biome-ignore format: a table
    scope(() => expect((pipe.forward(x) as Tensor).toArray()).toEqual((model.forward(x) as Tensor).toArray()));
    expect(pipeline(PipeSequential.fromSequential(model), { mbArgs: [x] }).numStages).toBe(3);
  });

  test('called again and again, it is numbered as before', () => {
    class Loop extends nn.Module {
      inner = model;
      forward(input: Tensor): Tensor {
        return this.inner.forward(this.inner.forward(input) as Tensor) as Tensor;
      }
    }
    const { graph } = traceModule(new Loop(), [x]);
    const paths = graph.nodes.flatMap(({ kind, modules }) => (kind === 'call' ? [modules?.at(-1)?.path] : []));
    expect(paths).toEqual(['inner.0', 'inner.1', 'inner.2', 'inner.0@1', 'inner.1@1', 'inner.2@1']);
  });

  test('a name that is never called says what is', () => {
    class Alias extends nn.Module {
      a = new nn.Linear(4, 4);
      b = this.a;
      forward(input: Tensor): Tensor {
        return this.a.forward(input);
      }
    }
    expect(() => traceModule(new Alias(), [x], { splitSpec: { b: SplitPoint.END } })).toThrow(
      /'b' \(Linear\) is never called under this name, but as 'a': name that/,
    );
  });
});

describe('multiUse', () => {
  const x = randn(2, 4);
  const split = (multiUse: unknown) => pipeline(new Twice(), { mbArgs: [x], multiUse: multiUse as MultiUseParamSpec });

  test.each([
    [3, /multiUse is 3; give 'transmit' or 'replicate', or one for each parameter/],
    [['transmit'], /multiUse is an array of 1/],
    [new Map([['embed.weight', 'transmit']]), /multiUse is a Map; give/],
    [{ 'embed.weight': null }, /multiUse\['embed.weight'\]: use is null/],
    [{ 'embed.weight': { use: null } }, /multiUse\['embed.weight'\]: use is null/],
    [{ 'embed.weight': new Map() }, /multiUse\['embed.weight'\]: use is a Map/],
    ['send', /multiUse is 'send'/],
    [{ nosuch: 'transmit' }, /multiUse names 'nosuch', which is no parameter of the model; there are embed.weight/],
    [{ 'embed.wieght': 'transmit' }, /did you mean 'embed.weight'/],
    [{ 'embed.weight': 3 }, /multiUse\['embed.weight'\]: use is 3; give 'transmit' or 'replicate'/],
    [{ 'embed.weight': { ownr: 2 } }, /multiUse\['embed.weight'\]: unknown option 'ownr' \(did you mean 'owner'\?\)/],
    [{ 'embed.weight': { owner: -1 } }, /owner is -1; give the number of a stage/],
    [{ 'embed.weight': { owner: 1 } }, /stage 1 cannot own 'embed.weight', which stages 0, 2 use/],
    [
      { 'embed.weight': { use: 'transmit', owner: 2 } },
      /values travel to later stages only; give an owner of at most 0/,
    ],
  ])('refuses %j by name', (multiUse, message) => {
    expect(() => split(multiUse)).toThrow(message);
  });

  test('the owner of a tie holds the model’s own tensor, and the others a copy', () => {
    for (const [owner, holders] of [
      [undefined, [true, false]],
      [0, [true, false]],
      [2, [false, true]],
    ] as const) {
      const model = new Twice();
      const pipe = pipeline(model, { mbArgs: [x], multiUse: { 'head.weight': { use: 'replicate', owner } } });
      const own = [pipe.getStageModule(0), pipe.getStageModule(2)].map((stage) => stage.parameters()[0]);
      expect(own.map((each) => each === model.embed.weight)).toEqual(holders);
      expect(own[0]?.equal(own[1] as Tensor)).toBe(true);
      expect(pipe.replicatedParams[0]?.owner).toBe(owner ?? 0);
    }
  });

  test('a parameter can be owned by a stage before its first user, which sends it', () => {
    class Late extends nn.Module {
      first = new nn.Linear(4, 4);
      shared = new nn.Parameter(randn(4));
      forward(input: Tensor): Tensor {
        const y = this.first.forward(input);
        pipeSplit();
        const z = y.mul(this.shared);
        pipeSplit();
        return z.add(this.shared);
      }
    }
    const model = new Late();
    const pipe = pipeline(model, { mbArgs: [x], multiUse: { shared: { use: 'transmit', owner: 0 } } });
    const holders = [0, 1, 2].map((i) => pipe.getStageModule(i).parameters().includes(model.shared));
    expect(holders).toEqual([true, false, false]);
    scope(() => {
      (pipe.forward(x) as Tensor).sum().backward();
      const got = model.shared.grad?.toArray();
      for (const each of pipe.parameters()) each.grad = null;
      model.forward(x).sum().backward();
      expect(got).toEqual(model.shared.grad?.toArray());
    });
  });
});
