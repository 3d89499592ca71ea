/** @file Groups, state, gradients and memory: what all optimizers share. */
import { describe, expect, test } from 'vitest';
import {
  float32,
  float64,
  liveTensors,
  manualSeed,
  nn,
  ones,
  optim,
  randn,
  scope,
  type Tensor,
  TorchError,
  tensor,
  zeros,
} from '../index.ts';
import { markShard } from '../internal.ts';

const types = [
  optim.SGD,
  optim.Adam,
  optim.AdamW,
  optim.Adagrad,
  optim.RMSprop,
  optim.Adamax,
  optim.NAdam,
  optim.RAdam,
  optim.Adafactor,
] as const;
type Type = new (params: Iterable<Tensor>, options?: object) => optim.Optimizer;
const all = types.map((type) => [type.name, type as unknown as Type] as const);

function codeOf(body: () => unknown): string {
  try {
    body();
  } catch (error) {
    if (error instanceof TorchError) return error.code;
    throw error;
  }
  return 'no error';
}

function model(seed = 0): nn.Sequential {
  manualSeed(seed);
  return new nn.Sequential(new nn.Linear(3, 4), new nn.Tanh(), new nn.Linear(4, 1));
}

function train(net: nn.Sequential, optimizer: optim.Optimizer, steps: number, x: Tensor): number {
  let loss = NaN;
  for (let i = 0; i < steps; i++) {
    loss = scope(() => {
      const value = net.forward(x).square().mean();
      value.backward();
      optimizer.step();
      optimizer.zeroGrad();
      return value.item();
    });
  }
  return loss;
}

manualSeed(5);
const x = randn([8, 3]);

describe.each(all)('%s', (name, type) => {
  const options = name === 'SGD' ? { lr: 0.05, momentum: 0.9 } : { lr: 0.02 };

  test('brings a loss down, inside scopes, and leaves nothing behind', () => {
    const net = model();
    const optimizer = new type(net.parameters(), options);
    const first = train(net, optimizer, 2, x);
    const live = liveTensors();
    expect(train(net, optimizer, 60, x)).toBeLessThan(first * 0.5);
    expect(liveTensors()).toBe(live);
    optimizer.dispose();
    net.dispose();
  });

  test('goes on exactly where its state was saved', () => {
    const [a, b] = [model(1), model(1)];
    const first = new type(a.parameters(), options);
    train(a, first, 5, x);
    b.loadStateDict(a.stateDict());
    const second = new type(b.parameters(), { lr: 1 });
    second.loadStateDict(first.stateDict());
    expect(second.paramGroups[0]?.lr).toBe(options.lr);
    train(a, first, 5, x);
    train(b, second, 5, x);
    for (const [key, value] of a.stateDict()) expect(b.stateDict().get(key)?.equal(value), key).toBe(true);
  });

  test('skips parameters without a gradient and counts steps of each', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    const optimizer = new type([p, q], options);
    p.grad = ones([2]);
    optimizer.step();
    expect(q.toArray()).toEqual([1, 1]);
    expect(optimizer.stateOf(q)).toEqual({});
    q.grad = ones([2]);
    optimizer.step();
    expect(q.toArray()).not.toEqual([1, 1]);
    const count = optimizer.stateOf(p)['step']?.item();
    expect([count, optimizer.stateOf(q)['step']?.item()]).toEqual(name === 'SGD' ? [undefined, undefined] : [2, 1]);
  });

  test('takes parameters of several types', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2], { dtype: float64 }).requiresGrad_()];
    const optimizer = new type([p, q], options);
    [p.grad, q.grad] = [ones([2]), ones([2], { dtype: float64 })];
    optimizer.step();
    expect(p.at(0).item()).toBeCloseTo(q.at(0).item(), 5);
  });

  test('takes the learning rate as a tensor', () => {
    const [p, q] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    [p.grad, q.grad] = [ones([2]), ones([2])];
    const rate = tensor(0.25, { dtype: float32 });
    new type([p], { lr: rate }).step();
    new type([q], { lr: 0.25 }).step();
    expect(p.at(0).item()).toBeCloseTo(q.at(0).item(), 6);
  });

  test('can go up instead of down', () => {
    const p = ones([1]).requiresGrad_();
    p.grad = ones([1]);
    new type([p], { ...options, maximize: true }).step();
    expect(p.item()).toBeGreaterThan(1);
  });
});

describe('Muon', () => {
  test('moves matrices beside AdamW, and goes on exactly where its state was saved', () => {
    const split = (net: nn.Sequential): [optim.Muon, optim.AdamW] => {
      const parameters = [...net.parameters()];
      const isMatrix = (parameter: Tensor): boolean => parameter.dim() === 2;
      return [
        new optim.Muon(parameters.filter(isMatrix), { lr: 0.02 }),
        new optim.AdamW(parameters.filter((parameter) => !isMatrix(parameter))),
      ];
    };
    const run = (net: nn.Sequential, optimizers: [optim.Muon, optim.AdamW], steps: number): number => {
      let loss = Number.NaN;
      for (let i = 0; i < steps; i++) {
        scope(() => {
          const value = net.forward(x).square().mean();
          value.backward();
          for (const optimizer of optimizers) {
            optimizer.step();
            optimizer.zeroGrad();
          }
          loss = value.item();
        });
      }
      return loss;
    };
    const a = model(1);
    const first = split(a);
    const begin = run(a, first, 1);
    expect(run(a, first, 60)).toBeLessThan(begin * 0.5);
    const b = model(2);
    b.loadStateDict(a.stateDict());
    const second = split(b);
    second.forEach((optimizer, i) => optimizer.loadStateDict((first[i] as optim.Optimizer).stateDict()));
    run(a, first, 3);
    run(b, second, 3);
    for (const [key, value] of a.stateDict()) expect(b.stateDict().get(key)?.equal(value), key).toBe(true);
  });

  test('makes an update orthogonal, whatever the gradient', () => {
    manualSeed(0);
    const p = zeros([3, 5]).requiresGrad_();
    p.grad = randn([3, 5]).mul(1000);
    new optim.Muon([p], { lr: 1, weightDecay: 0, momentum: 0 }).step();
    const singular = p.detach().matmul(p.detach().t()).toArray() as number[][];
    singular.forEach((row, i) =>
      row.forEach((value, j) => {
        expect(Math.abs(value - (i === j ? 0.9 : 0))).toBeLessThan(0.6);
      }),
    );
  });

  test('says what it cannot take', () => {
    const matrix = ones([2, 2]).requiresGrad_();
    expect(() => new optim.Muon([ones([2])])).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: parameters are real matrices, got [2] of float32; give biases, norms and embeddings to another optimizer, AdamW for example]`,
    );
    expect(() => new optim.Muon([matrix], { nsSteps: 100 })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: nsSteps is a whole number below 100, got 100]`,
    );
    expect(() => new optim.Muon([matrix], { nsCoefficients: [1, 2] as never })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: nsCoefficients are three numbers, got [1,2]]`,
    );
    expect(() => new optim.Muon([matrix], { adjustLrFn: 'adam' as never })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Muon: adjustLrFn is 'original', 'match_rms_adamw' or null, got "adam"]`,
    );
  });
});

test.each([optim.Muon, optim.Adafactor])('%o computes with whole matrices, and refuses shards', (Type) => {
  const make = (): nn.Parameter => new nn.Parameter(ones([2, 2]));
  const [shard, later] = [make(), make()];
  markShard(shard);
  const rule = expect.objectContaining({
    code: 'BAD_ARGUMENT',
    message: `${Type.name}: a parameter is this rank's part of a sharded one, [2, 2], and ${Type.name} computes with whole matrices; use replicate instead of fullyShard, or another optimizer, AdamW for example`,
  }) as Error;
  expect(() => new Type([shard])).toThrow(rule);
  for (const steps of [0, 1]) {
    const parameter = make();
    const optimizer = new Type([parameter, later]);
    parameter.grad = ones([2, 2]);
    for (let i = 0; i < steps; i++) optimizer.step();
    parameter.become(ones([2, 2]));
    markShard(parameter);
    expect(() => optimizer.step()).toThrow(rule);
  }
  shard.grad = ones([2, 2]);
  new optim.AdamW([shard]).step();
  expect(shard.at(0, 0).item()).toBeLessThan(1);
});

describe('groups', () => {
  test('have options of their own and can be added', () => {
    const [p, q, r] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    const optimizer = new optim.SGD([{ params: [p] }, { params: q, lr: 0.5 }], { lr: 0.1 });
    optimizer.addParamGroup({ params: [r], lr: 1, weightDecay: 1 });
    for (const one of [p, q, r]) one.grad = ones([1]);
    optimizer.step();
    expect([p, q, r].map((one) => one.item())).toEqual([0.8999999761581421, 0.5, -1]);
    (optimizer.paramGroups[0] as { lr: number }).lr = 0;
    optimizer.step();
    expect(p.item()).toBe(0.8999999761581421);
  });

  test('can be changed after a step: what is remembered stays with its parameter', () => {
    const [a, b, c] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    const grads = (): void => {
      for (const one of [a, b, c]) one.grad = ones([1]);
    };
    const optimizer = new optim.AdamW([{ params: [a] }, { params: [b] }], { lr: 0.1 });
    const [first, second] = [optimizer.paramGroups[0]!, optimizer.paramGroups[1]!];
    const steps = (...of: Tensor[]): unknown[] => of.map((one) => optimizer.stateOf(one)['step']?.item());
    grads();
    optimizer.step();
    first.params.push(c);
    optimizer.step();
    expect(steps(a, b, c)).toEqual([2, 2, 1]);
    optimizer.zeroGrad();
    expect([a, b, c].map((one) => one.grad)).toEqual([null, null, null]);
    first.params = first.params.filter((one) => one !== a);
    second.params.unshift(a);
    grads();
    optimizer.step();
    expect(steps(a, b, c)).toEqual([3, 3, 2]);
    expect(optimizer.stateDict().paramGroups.map((group) => group.params)).toEqual([[0], [1, 2]]);
    optimizer.paramGroups.splice(0, 1);
    expect(steps(a, b)).toEqual([3, 3]);
    const before = c.item();
    optimizer.step();
    expect([c.item(), ...steps(a, b)]).toEqual([before, 4, 4]);
    second.params[0] = c;
    expect(steps(c, b)).toEqual([undefined, 4]);
    optimizer.step();
    expect(steps(c, b)).toEqual([1, 5]);
  });

  test('that were changed to what makes no sense are refused, and nothing is forgotten', () => {
    const [p, q] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    const optimizer = new optim.AdamW([{ params: [p] }, { params: [q] }]);
    [p.grad, q.grad] = [ones([1]), ones([1])];
    optimizer.step();
    const group = optimizer.paramGroups[0]!;
    for (const params of [[p, q], [p.mul(2)], [undefined], new Set([p])]) {
      group.params = params as Tensor[];
      expect(codeOf(() => optimizer.step())).toMatch(/^(BAD_ARGUMENT|NOT_LEAF)$/);
    }
    group.params = [p];
    expect(optimizer.stateOf(p)['step']?.item()).toBe(1);
  });

  test('can name their parameters', () => {
    const net = new nn.Linear(1, 1);
    expect(new optim.SGD(net.namedParameters()).paramGroups[0]?.paramNames).toEqual(['weight', 'bias']);
  });

  test('are printed', () => {
    expect(new optim.SGD([ones([1])], { lr: 0.1 }).toString()).toMatchInlineSnapshot(`
      "SGD (
      Parameter Group 0
          dampening: 0
          lr: 0.1
          maximize: false
          momentum: 0
          nesterov: false
          weightDecay: 0
      )"
    `);
  });

  test('whose options are no numbers are refused by step, which moves nothing', () => {
    const [p, q] = [ones([1]).requiresGrad_(), ones([1]).requiresGrad_()];
    [p.grad, q.grad] = [ones([1]), ones([1])];
    const messageOf = (optimizer: optim.Optimizer, options: object): unknown => {
      const group = optimizer.paramGroups[1]!;
      const before = { ...group };
      Object.assign(group, options);
      try {
        optimizer.step();
      } catch (error) {
        expect(codeOf(() => optimizer.step())).toBe('BAD_ARGUMENT');
        return (error as Error).message;
      } finally {
        Object.assign(group, before);
      }
      return 'no error';
    };
    const groups = [{ params: [p] }, { params: [q] }];
    const adam = new optim.Adam(groups) as optim.Optimizer;
    const rprop = new optim.Rprop(groups) as optim.Optimizer;
    const adafactor = new optim.Adafactor(groups) as optim.Optimizer;
    expect([
      messageOf(adam, { weightDecay: undefined }),
      messageOf(adam, { lr: '0.1' }),
      messageOf(adam, { lr: Number.NaN }),
      messageOf(adam, { eps: null }),
      messageOf(adam, { betas: [0.9] }),
      messageOf(adam, { betas: undefined }),
      messageOf(adam, { decoupledWeightDecay: undefined }),
      messageOf(adam, { eps: ones([1]) }),
      messageOf(rprop, { lr: undefined }),
      messageOf(adafactor, { eps: [null, null] }),
    ]).toMatchInlineSnapshot(`
      [
        "Adam.step: weightDecay of group 1 is undefined; set it to a number",
        "Adam.step: lr of group 1 is '0.1'; set it to a number",
        "Adam.step: lr of group 1 is NaN; set it to a number",
        "Adam.step: eps of group 1 is null; set it to a number",
        "Adam.step: betas.1 of group 1 is undefined; set it to a number",
        "Adam.step: betas.0 of group 1 is undefined; set it to a number",
        "Adam.step: decoupledWeightDecay of group 1 is NaN; set it to a number",
        "Adam.step: eps of group 1 is a Tensor; set it to a number",
        "Rprop.step: lr of group 1 is undefined; set it to a number",
        "Adafactor.step: eps.1 of group 1 is null; set it to a number",
      ]
    `);
    expect([p.item(), q.item()]).toEqual([1, 1]);
    expect(messageOf(adafactor, { eps: [null, 1e-3] })).toBe('no error');
    expect(p.item()).not.toBe(1);
  });

  test('refuse what makes no sense', () => {
    const p = ones([1]).requiresGrad_();
    expect(() => new optim.Adam([p], { learningRate: 1 } as object)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adam: unknown option 'learningRate'; it takes lr, betas, eps, amsgrad, maximize, weightDecay, decoupledWeightDecay]`,
    );
    expect(() => new optim.Adam([p], { betas: [0.9, 1] })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Adam: betas are two numbers of at least 0 and less than 1, got [0.9,1]]`,
    );
    expect(codeOf(() => new optim.SGD([p], { lr: -1 }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p], { nesterov: true }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([]))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p, p]))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new optim.SGD([p.mul(2)]))).toBe('NOT_LEAF');
    expect(codeOf(() => new optim.SGD([1 as unknown as Tensor]))).toBe('BAD_ARGUMENT');
  });
});

describe('state', () => {
  test('has the names of PyTorch and shares memory', () => {
    const p = ones([2]).requiresGrad_();
    const optimizer = new optim.AdamW([p], { amsgrad: true });
    p.grad = ones([2]);
    optimizer.step();
    const { state, paramGroups } = optimizer.stateDict();
    expect(Object.keys(state[0] ?? {})).toEqual(['step', 'exp_avg', 'exp_avg_sq', 'max_exp_avg_sq']);
    expect(paramGroups[0]?.params).toEqual([0]);
    state[0]?.['exp_avg']?.zero_();
    expect(optimizer.stateOf(p)['exp_avg']?.toArray()).toEqual([0, 0]);
  });

  test('is copied, or taken as it is', () => {
    const [a, b] = [ones([2]).requiresGrad_(), ones([2]).requiresGrad_()];
    const [first, second] = [new optim.Adam([a]), new optim.Adam([b])];
    a.grad = ones([2]);
    first.step();
    for (const copy of [true, false]) {
      second.loadStateDict(first.stateDict(), { copy });
      first.stateOf(a)['exp_avg']?.fill_(copy ? 3 : 4);
      expect(second.stateOf(b)['exp_avg']?.at(0).item() === 4, `copy: ${copy}`).toBe(!copy);
    }
    expect(() => second.loadStateDict(first.stateDict(), { share: true } as object)).toThrow("unknown option 'share'");
  });

  test('with a learning rate that is a tensor: the value is copied, and a tensor that is there stays', () => {
    const make = (lr: number | Tensor): optim.AdamW => new optim.AdamW([ones([2]).requiresGrad_()], { lr });
    const saved = tensor(0.25, { dtype: float32 });
    const from = make(saved);
    from.paramGroups[0]!.betas = [0.5, 0.5];
    const own = tensor(0.5, { dtype: float32 });
    const [tensors, numbers, back] = [make(own), make(0.5), make(own.clone())];
    scope(() => {
      tensors.loadStateDict(from.stateDict());
      numbers.loadStateDict(from.stateDict());
    });
    back.loadStateDict(make(0.125).stateDict());
    saved.fill_(8);
    expect(tensors.paramGroups[0]!.lr).toBe(own);
    const rates = [tensors, numbers, back].map((optimizer) => (optimizer.paramGroups[0]!.lr as Tensor).item());
    expect(rates).toEqual([0.25, 0.25, 0.125]);
    expect(numbers.paramGroups[0]!.betas).not.toBe(from.paramGroups[0]!.betas);
    tensors.loadStateDict(tensors.stateDict());
    expect(own.item()).toBe(0.25);
  });

  test('that does not fit is refused', () => {
    const [a, b] = [new optim.Adam([ones([2]).requiresGrad_()]), new optim.Adam([ones([3]).requiresGrad_()])];
    const parameter = a.paramGroups[0]?.params[0] as Tensor;
    parameter.grad = ones([2]);
    a.step();
    expect(() => b.loadStateDict(a.stateDict())).toThrow(/parameter 0: exp_avg is \[2\] and must have the shape \[3\]/);
    expect(codeOf(() => new optim.Adam([zeros([1]), zeros([1])]).loadStateDict(a.stateDict()))).toBe('STATE_DICT');
  });

  test('of another kind of optimizer is refused, and nothing was changed', () => {
    const [a, b] = [model(), model()];
    const adam = new optim.AdamW(a.parameters(), { lr: 0.5 });
    train(a, adam, 1, ones([2, 3]));
    const sgd = new optim.SGD([{ params: b.parameters() }], { lr: 0.1, momentum: 0.9 });
    const before = String(sgd);
    expect(() => sgd.loadStateDict(adam.stateDict())).toThrow(
      /^SGD.loadStateDict: the state has step, exp_avg, exp_avg_sq, which SGD does not remember; load it into the kind/,
    );
    expect(() => sgd.checkStateDict(adam.stateDict())).toThrow(expect.objectContaining({ code: 'STATE_DICT' }));
    expect(String(sgd)).toBe(before);
    sgd.checkStateDict(sgd.stateDict());
  });

  test.each(all)('%s goes on with parameters that have become others', (_, Type) => {
    const [a, b] = [model(3), model(3)];
    const x = ones([2, 3]);
    const [first, second] = [new Type(a.parameters()), new Type(b.parameters())];
    train(a, first, 2, x);
    train(b, second, 2, x);
    for (const parameter of b.parameters()) parameter.become(parameter.detach().clone());
    train(a, first, 2, x);
    train(b, second, 2, x);
    a.parameters().forEach((parameter, i) => {
      expect(b.parameters()[i]!.toArray()).toEqual(parameter.toArray());
    });
  });

  test.each(all)('%s goes on with a model whose element type was changed', (name, Type) => {
    const options = name === 'SGD' ? { lr: 0.05, momentum: 0.9 } : { lr: 0.02 };
    const [a, b] = [model(3), model(3)];
    const [first, second] = [new Type(a.parameters(), options), new Type(b.parameters(), options)];
    train(a, first, 2, x);
    train(b, second, 2, x);
    b.double();
    train(a, first, 2, x);
    train(b, second, 2, x.double());
    a.parameters().forEach((parameter, i) => {
      const other = b.parameters()[i]!;
      expect(other.dtype).toBe(float64);
      expect(other.sub(parameter).abs().max().item()).toBeLessThan(1e-4);
      expect(second.stateOf(other)['step']?.item()).toBe(name === 'SGD' ? undefined : 4);
    });
  });

  test.each(all)('%s refuses parameters that have become others of another shape', (_, Type) => {
    const net = model();
    const optimizer = new Type(net.parameters(), { ...(Type === (optim.SGD as unknown) ? { momentum: 0.9 } : {}) });
    train(net, optimizer, 1, ones([2, 3]));
    const [weight] = net.parameters() as [nn.Parameter];
    const kept = weight.detach().clone();
    weight.become(zeros([2, 3]));
    weight.grad = ones([2, 3]);
    expect(() => optimizer.step()).toThrow(
      /: parameter 0 is \[2, 3\] now, and was another one when this optimizer took a step: .*; make the optimizer after/,
    );
    weight.become(kept);
    train(net, optimizer, 1, ones([2, 3]));
  });

  test('survives a change of what is remembered', () => {
    const p = ones([2]).requiresGrad_();
    const optimizer = new optim.RMSprop([p]);
    p.grad = ones([2]);
    optimizer.step();
    (optimizer.paramGroups[0] as { momentum: number }).momentum = 0.9;
    optimizer.step();
    expect(optimizer.stateOf(p)['step']?.item()).toBe(2);
    expect(Object.keys(optimizer.stateOf(p))).toContain('momentum_buffer');
  });
});

test('sparse gradients: SGD takes them, others say what to do', () => {
  const table = new nn.Embedding(4, 2, { sparse: true });
  table
    .forward(tensor([1, 1]))
    .sum()
    .backward();
  const before = table.weight.detach().clone();
  expect(() => new optim.Adam(table.parameters()).step()).toThrow(/use SGD/);
  new optim.SGD(table.parameters(), { lr: 0.5 }).step();
  expect(table.weight.sub(before).toArray()).toEqual([
    [0, 0],
    [-1, -1],
    [0, 0],
    [0, 0],
  ]);
});

test('gradients are dropped, or made zero', () => {
  const p = ones([2]).requiresGrad_();
  const optimizer = new optim.SGD([p]);
  p.grad = ones([2]);
  optimizer.zeroGrad({ setToNone: false });
  expect(p.grad.toArray()).toEqual([0, 0]);
  optimizer.zeroGrad();
  expect(p.grad).toBeNull();
});

test.each([undefined, null, 3, 'weight', {}])('parameters that are %o are refused', (parameters) => {
  expect(() => new optim.SGD(parameters as never)).toThrow(expect.objectContaining({ code: 'BAD_ARGUMENT' }));
});
