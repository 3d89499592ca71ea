/** @file What every module can do: members and their names, state, modes, moves, copies, hooks and printing. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { codeOf } from '../../testing/error-code.ts';
import {
  bfloat16,
  float16,
  float32,
  float64,
  int64,
  liveTensors,
  manualSeed,
  nn,
  ones,
  randn,
  scope,
  Tensor,
  tensor,
  zeros,
} from '../index.ts';

interface Reference {
  readonly text: string;
  readonly state: readonly string[];
  readonly parameters: readonly string[];
  readonly buffers: readonly string[];
  readonly modules: readonly string[];
  readonly sequential: string;
  readonly named: string;
}

/** What PyTorch says of the same model. */
const reference = JSON.parse(
  readFileSync(new URL('../../../../testdata/nn/net.json', import.meta.url), 'utf8'),
) as Reference;

class Block extends nn.Module {
  ln_1 = new nn.LayerNorm(4);
  attn = new nn.MultiheadAttention(4, 2);
  mlp = new nn.Sequential(new nn.Linear(4, 8), new nn.GELU(), new nn.Linear(8, 4, { bias: false }));

  forward(x: Tensor): Tensor {
    return this.mlp.forward(this.ln_1.forward(x));
  }
}

class Net extends nn.Module {
  tokEmb = new nn.Embedding(10, 4);
  blocks = new nn.ModuleList([new Block(), new Block(), new Block()]);
  heads = new nn.ModuleDict<nn.Module>({ a: new nn.Linear(4, 1), b: new nn.ReLU() });
  scales = new nn.ParameterList([ones([3]), ones([2, 2])]);
  named = new nn.ParameterDict({ x: ones([3]) });
  empty = new nn.ModuleList();
  act = new nn.Tanh();
  gain = new nn.Parameter(ones([1]));
  lnF = new nn.LayerNorm(4);
  head = new nn.Linear(4, 10, { bias: false });
  plain = ones([2]);
  list = [new nn.Linear(1, 1)];
  declare mask: Tensor;

  constructor() {
    super();
    this.registerBuffer('mask', ones([2]));
    this.registerBuffer('tmp', ones([2]), { persistent: false });
    this.head.weight = this.tokEmb.weight;
  }

  forward(x: Tensor): Tensor {
    return this.head.forward(this.lnF.forward(this.tokEmb.forward(x)));
  }
}

describe('members', () => {
  const net = new Net();

  test('names and order are as in PyTorch', () => {
    expect([...net.stateDict().keys()]).toEqual(reference.state);
    expect(net.namedParameters().map(([name]) => name)).toEqual(reference.parameters);
    expect(net.namedBuffers().map(([name]) => name)).toEqual(reference.buffers);
    expect(net.namedModules().map(([name]) => name)).toEqual(reference.modules);
  });

  test('prints as PyTorch prints', () => {
    expect(net.toString()).toBe(reference.text);
    expect(new nn.Sequential(new nn.Linear(2, 3), new nn.ReLU()).toString()).toBe(reference.sequential);
    expect(new nn.Sequential({ first: new nn.Linear(2, 3), act: new nn.ReLU() }).toString()).toBe(reference.named);
  });

  test('a shared parameter is named once unless asked otherwise', () => {
    expect(net.namedParameters({ removeDuplicate: false }).map(([name]) => name)).toContain('head.weight');
    expect(net.parameters({ recurse: false })).toEqual([net.gain]);
    expect(net.namedParameters({ prefix: 'net', recurse: false })[0]?.[0]).toBe('net.gain');
  });

  test('things are found by name', () => {
    expect(net.getSubmodule('blocks.1.mlp.0')).toBe(net.blocks.at(1).mlp.at(0));
    expect(net.getSubmodule('tokEmb')).toBe(net.tokEmb);
    expect(net.getParameter('ln_f.bias')).toBe(net.lnF.bias);
    expect(net.getBuffer('mask')).toBe(net.mask);
    expect(() => net.getSubmodule('blocks.7')).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Net has no submodule 'blocks.7'; there are 0, 1, 2]`,
    );
    expect(codeOf(() => net.getParameter('nothing'))).toBe('NOT_FOUND');
  });

  test('registering checks names and kinds', () => {
    expect(codeOf(() => net.registerParameter('a.b', null))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => net.registerParameter('forward', null))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => net.registerParameter('x', ones([1]) as nn.Parameter))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => net.addModule('x', {} as nn.Module))).toBe('BAD_ARGUMENT');
    const extra = new nn.Sequential();
    extra.addModule('camelCase', new nn.ReLU());
    extra.registerParameter('weight_g', new nn.Parameter(ones([1])));
    expect(extra.namedParameters().map(([name]) => name)).toEqual(['weight_g']);
  });

  test('apply visits children first', () => {
    const seen: string[] = [];
    new nn.Sequential(new nn.Linear(1, 1), new nn.Sequential(new nn.ReLU())).apply((module) =>
      seen.push(module.getName()),
    );
    expect(seen).toEqual(['Linear', 'ReLU', 'Sequential', 'Sequential']);
  });

  test('train and eval reach everything', () => {
    net.eval();
    expect(net.modules().every((module) => !module.training)).toBe(true);
    net.train();
    expect(net.modules().every((module) => module.training)).toBe(true);
  });
});

describe('state', () => {
  test('what was saved is loaded', () => {
    const [a, b] = [new Net(), new Net()];
    expect(b.loadStateDict(a.stateDict())).toEqual({ missingKeys: [], unexpectedKeys: [] });
    for (const [name, value] of a.stateDict()) expect(b.stateDict().get(name)?.equal(value), name).toBe(true);
    expect(b.stateDict().get('gain')?.requiresGrad).toBe(false);
    expect(b.stateDict({ keepVars: true, prefix: 'm.' }).get('m.gain')).toBe(b.gain);
  });

  test('everything that does not fit is listed', () => {
    const model = new nn.Sequential(new nn.Linear(2, 3), new nn.Linear(3, 1));
    const wrong = { '0.weight': zeros([3, 2]), '0.bais': zeros([3]), '1.weight': zeros([1, 4]), '1.bias': zeros([1]) };
    expect(() => model.loadStateDict(wrong)).toThrowErrorMatchingInlineSnapshot(`
      [TorchError: loadStateDict: the state does not fit Sequential
        shape of 1.weight: the module has [1, 3], the state [1, 4]
        missing: 0.bias
        unexpected: 0.bais (did you mean '0.bias'?)]
    `);
    const { '1.weight': _, ...rest } = wrong;
    expect(model.loadStateDict(rest, { strict: false })).toEqual({
      missingKeys: ['0.bias', '1.weight'],
      unexpectedKeys: ['0.bais'],
    });
    expect(codeOf(() => model.loadStateDict({}, { strick: false } as object))).toBe('UNKNOWN_OPTION');
  });

  test('with assign the given memory becomes the parameter', () => {
    const model = new nn.Linear(2, 1);
    const weight = tensor([[5, 6]], { dtype: float64 });
    const kept = model.weight;
    model.loadStateDict({ weight, bias: zeros([1]) }, { assign: true });
    expect(model.weight).toBe(kept);
    expect(model.weight.dtype).toBe(float64);
    expect(model.weight.requiresGrad).toBe(true);
    weight.fill_(1);
    expect(model.weight.toArray()).toEqual([[1, 1]]);
  });

  test('to changes floating-point tensors only, gradients too', () => {
    const model = new nn.BatchNorm1d(3);
    model
      .forward(randn([4, 3]))
      .sum()
      .backward();
    model.to(float64);
    expect([model.weight, model.runningMean, model.weight?.grad].map((one) => one?.dtype)).toEqual([
      float64,
      float64,
      float64,
    ]);
    expect(model.numBatchesTracked?.dtype).toBe(int64);
    expect(model.half().weight?.dtype).toBe(float16);
    expect(model.bfloat16().weight?.dtype).toBe(bfloat16);
    expect(model.float().weight?.dtype).toBe(float32);
    expect(model.double().to('cpu', float32).weight?.dtype).toBe(float32);
    expect(model.to({ dtype: 'float64', device: 'cpu' }).weight?.requiresGrad).toBe(true);
    expect(codeOf(() => model.to(int64))).toBe('DTYPE');
  });

  test('a model on the meta device gets memory with toEmpty', () => {
    const model = new nn.Linear(2, 3, { device: 'meta' });
    const { weight } = model;
    expect(model.toEmpty('cpu').weight).toBe(weight);
    expect([weight.device, weight.shape, weight.requiresGrad]).toEqual(['cpu', [3, 2], true]);
    model.loadStateDict({ weight: ones([3, 2]), bias: zeros([3]) });
    expect(model.forward(ones([1, 2])).toArray()).toEqual([[2, 2, 2]]);
  });

  test('a class with private fields says what to write, and is cloned when it does so', () => {
    class Counter extends nn.Module {
      #calls = 0;
      /** Not a field: #nothing */
      readonly color = '#ff0000';
      forward(x: Tensor): Tensor {
        this.#calls++;
        return x.mul(this.#calls);
      }
    }
    expect(() => new Counter().clone()).toThrow('clone: Counter has the private field #calls, which cannot be copied');
    expect(() => new nn.Sequential(new Counter()).clone()).toThrow("declare it with 'private' instead of '#'");
    class Derived extends Counter {}
    expect(() => new Derived().clone()).toThrow('Counter has the private field');
    class Copied extends Counter {
      override clone(): this {
        return new Copied() as this;
      }
    }
    const copy = new nn.Sequential(new Copied()).clone();
    expect((copy.forward(ones([1])) as Tensor).item()).toBe(1);
    class Plain extends nn.Module {
      readonly color = '#ff0000'; // #nothing
      forward(x: Tensor): Tensor {
        return x;
      }
    }
    expect(new Plain().clone().color).toBe('#ff0000');
  });

  test('a clone shares nothing but structure', () => {
    const net = new Net();
    const copy = net.clone();
    expect(copy.toString()).toBe(net.toString());
    expect(copy.head.weight).toBe(copy.tokEmb.weight);
    expect(copy.gain).not.toBe(net.gain);
    copy.gain.setData(zeros([1]));
    expect(net.gain.item()).toBe(1);
    expect(copy.forward(tensor([1, 2])).shape).toEqual([2, 10]);
  });

  test('gradients are dropped, or made zero', () => {
    const model = new nn.Linear(2, 1);
    model
      .forward(ones([1, 2]))
      .sum()
      .backward();
    model.zeroGrad({ setToNone: false });
    expect(model.weight.grad?.toArray()).toEqual([[0, 0]]);
    model.zeroGrad();
    expect(model.weight.grad).toBeNull();
    model.requiresGrad_(false);
    expect(model.parameters().some((parameter) => parameter.requiresGrad)).toBe(false);
  });
});

describe('memory', () => {
  test('parameters outlive the scope they were made in, and dispose frees them', () => {
    const before = liveTensors();
    let model: nn.Linear | undefined;
    scope(() => {
      model = new nn.Linear(3, 3);
      model
        .forward(ones([1, 3]))
        .sum()
        .backward();
    });
    expect(liveTensors()).toBe(before + 2);
    expect(scope(() => model!.forward(ones([1, 3])).shape)).toEqual([1, 3]);
    model!.dispose();
    expect(liveTensors()).toBe(before);
    expect(codeOf(() => model!.forward(ones([1, 3])))).toBe('DISPOSED');
  });

  test('building a model of every kind of layer leaves only its parameters and buffers', () => {
    scope(() => {
      const before = liveTensors();
      const model = new nn.Sequential(
        new nn.Linear(2, 2),
        new nn.Conv2d(1, 1, 3),
        new nn.BatchNorm2d(2),
        new nn.LSTM(2, 2),
        new nn.MultiheadAttention(2, 1),
        new nn.Embedding(3, 2),
      );
      expect(liveTensors() - before).toBe(model.parameters().length + model.buffers().length);
      model.dispose();
    });
  });
});

describe('hooks', () => {
  test('forward hooks see and change arguments and results', () => {
    const model = new nn.Sequential(new nn.Linear(2, 2), new nn.ReLU());
    const seen: string[] = [];
    const handles = [
      model.at(0).registerForwardPreHook((module, [x]) => {
        seen.push(`pre ${module.getName()} ${(x as Tensor).shape}`);
        return (x as Tensor).mul(0);
      }),
      model.at(0).registerForwardHook((_, __, output) => {
        seen.push('post');
        return (output as Tensor).mul(0).add(7);
      }),
    ];
    expect(model.forward(ones([1, 2])).toArray()).toEqual([[7, 7]]);
    expect(seen).toEqual(['pre Linear 1,2', 'post']);
    for (const handle of handles) handle.remove();
    expect(Object.hasOwn(model.at(0), 'forward')).toBe(false);
    model.forward(ones([1, 2]));
    expect(seen.length).toBe(2);
  });

  test('backward hooks see gradients of inputs and outputs, and can change them', () => {
    const layer = new nn.Linear(2, 1, { bias: false });
    layer.loadStateDict({ weight: tensor([[2, 3]], { dtype: float32 }) });
    const seen: unknown[] = [];
    using _pre = layer.registerFullBackwardPreHook((_, [grad]) => [grad!.mul(10)]);
    using _hook = layer.registerFullBackwardHook((_, gradInputs, gradOutputs) => {
      seen.push(
        gradInputs.map((grad) => grad?.toArray()),
        gradOutputs.map((grad) => grad?.toArray()),
      );
      return gradInputs.map((grad) => grad?.mul(2) ?? null);
    });
    const x = ones([1, 2]).requiresGrad_();
    layer.forward(x).sum().backward();
    expect(seen).toEqual([[[[20, 30]]], [[[10]]]]);
    expect(x.grad?.toArray()).toEqual([[40, 60]]);
    expect(layer.weight.grad?.toArray()).toEqual([[10, 10]]);
  });

  test('a backward hook runs also where no input needs a gradient', () => {
    const layer = new nn.Linear(2, 1);
    const seen: unknown[] = [];
    using _hook = layer.registerFullBackwardHook(
      (_, gradInputs, gradOutputs) =>
        void seen.push(
          gradInputs,
          gradOutputs.map((grad) => grad?.item()),
        ),
    );
    layer
      .forward(ones([1, 2]))
      .sum()
      .backward();
    expect(seen).toEqual([[null], [1]]);
  });

  test('a backward hook that is removed after the forward still runs', () => {
    const layer = new nn.Linear(1, 1, { bias: false });
    layer.loadStateDict({ weight: tensor([[2]], { dtype: float32 }) });
    const hook = layer.registerFullBackwardHook((_, gradInputs) => gradInputs.map((grad) => grad?.mul(100) ?? null));
    const x = ones([1, 1]).requiresGrad_();
    const y = layer.forward(x);
    hook.remove();
    y.sum().backward();
    expect(x.grad?.item()).toBe(200);
  });

  test('a clone has the same hooks, as a deep copy in PyTorch; those of one are removed from that one', () => {
    const layer = new nn.ReLU();
    const hook = layer.registerForwardHook((_, __, output) => (output as Tensor).add(1));
    const model = new nn.Sequential(layer).clone();
    const run = (module: nn.ReLU | nn.Sequential): unknown => (module.forward(zeros([1])) as Tensor).item();
    expect([run(layer), run(model)]).toEqual([1, 1]);
    hook.remove();
    expect([run(layer), run(model)]).toEqual([0, 1]);
    expect(run(layer.clone())).toBe(0);
  });
});

describe('layout and types', () => {
  test('a memory format is for the tensors that have its dimensions', () => {
    const model = new nn.Sequential(new nn.Conv2d(2, 3, 3), new nn.Linear(2, 2)).to({ memoryFormat: 'channels_last' });
    const strides = model.parameters().map((parameter) => parameter.stride());
    expect(strides).toEqual([[18, 1, 6, 2], [1], [2, 1], [1]]); // biome-ignore format: one line
  });

  test('a parameter that gets memory of another type has no gradient of the old one', () => {
    const layer = new nn.Linear(2, 1);
    layer
      .forward(ones([1, 2]))
      .sum()
      .backward();
    const state = { weight: ones([1, 2]), bias: zeros([1], { dtype: float64 }) };
    layer.loadStateDict(state, { assign: true });
    expect([layer.weight.grad === null, layer.bias!.grad === null]).toEqual([false, true]);
    expect(layer.bias!.dtype).toBe(float64);
  });
});

describe('containers', () => {
  test('Sequential is a list of modules', () => {
    const model = new nn.Sequential(new nn.ReLU(), new nn.Tanh());
    model.append(new nn.Sigmoid()).insert(1, new nn.GELU()).set(-1, new nn.SiLU());
    expect([...model].map((module) => module.getName())).toEqual(['ReLU', 'GELU', 'Tanh', 'SiLU']);
    expect(
      model
        .slice(1, 3)
        .namedChildren()
        .map(([name]) => name),
    ).toEqual(['1', '2']);
    for (const index of [4, -5, 0.5, '0', Symbol('s'), 1n, null])
      expect(
        codeOf(() => model.at(index as number)),
        String(index),
      ).toBe('INDEX');
    expect(codeOf(() => new nn.Sequential(new nn.ReLU(), 3 as unknown as nn.Module))).toBe('BAD_ARGUMENT');
  });

  test('ModuleList and ModuleDict compute nothing by themselves', () => {
    const list = new nn.ModuleList([new nn.ReLU()]).extend([new nn.ReLU()]);
    list.insert(0, new nn.ReLU()).pop();
    expect([list.length, list.at(-1) instanceof nn.ReLU]).toEqual([2, true]);
    expect(codeOf(() => list.forward())).toBe('NOT_CALLABLE');
    const dict = new nn.ModuleDict({ a: new nn.ReLU() });
    expect([dict.has('a'), [...dict.keys()], dict.size]).toEqual([true, ['a'], 1]);
    expect(() => dict.get('b')).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: ModuleDict: there is no module 'b'; there are a]`,
    );
  });
});

describe('options', () => {
  test('unknown ones and wrong kinds are refused by name', () => {
    expect(() => new nn.Linear(2, 3, { bais: false } as object)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Linear: unknown option 'bais' (did you mean 'bias'?); it takes bias, dtype, device]`,
    );
    expect(() => new nn.Dropout({ p: 2 })).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Dropout: the probability p must be between 0 and 1, got 2]`,
    );
    expect(() => new nn.Conv2d(3, 4, 3, { stride: '2' } as object)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: Conv2d: option 'stride' is a number, got string; leave it out for 1]`,
    );
    expect(() => new nn.LayerNorm(4, 1e-6 as unknown as object)).toThrowErrorMatchingInlineSnapshot(
      `[TorchError: LayerNorm: everything with a default goes into one options object ({ eps, elementwiseAffine, bias }), got number]`,
    );
    for (const [options, what] of [
      [new Map([['bias', false]]), 'a Map'],
      [new Set(['bias']), 'a Set'],
      [Promise.resolve({}), 'a Promise'],
    ] as const) {
      expect(() => new nn.Linear(2, 3, options as object)).toThrow(`Linear: the options are ${what}; give an object`);
    }
    expect(codeOf(() => new nn.Conv2d(3, 4, 3, { groups: 2 }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new nn.Conv2d(3, 4, 3, { padding: 'same', stride: 2 }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new nn.CrossEntropyLoss({ reduction: 'avg' as 'mean' }))).toBe('BAD_ARGUMENT');
    expect(codeOf(() => new nn.MultiheadAttention(5, 2))).toBe('BAD_ARGUMENT');
  });

  test('dtype makes parameters of that type, drawn as PyTorch draws them', () => {
    manualSeed(0);
    const layer = new nn.Linear(2, 1, { dtype: float64 });
    expect(layer.weight.dtype).toBe(float64);
    expect(layer.forward(ones([1, 2], { dtype: float64 })).dtype).toBe(float64);
  });
});

test('names that are whole numbers keep the order in which they were added, as all others', () => {
  class Numbered extends nn.Module {
    fc = new nn.Linear(1, 1, { bias: false });

    constructor() {
      super();
      this.addModule('10', new nn.Linear(1, 1, { bias: false }));
      this.addModule('head', new nn.Linear(1, 1, { bias: false }));
      this.addModule('2', new nn.Linear(1, 1, { bias: false }));
      this.registerParameter('7', new nn.Parameter(ones([1])));
    }

    forward(x: Tensor): Tensor {
      return x;
    }
  }
  const wanted = ['7', 'fc.weight', '10.weight', 'head.weight', '2.weight'];
  const net = new Numbered();
  for (const one of [net, net.clone()]) {
    expect([...one.stateDict().keys()]).toEqual(wanted);
    expect(one.namedParameters().map(([name]) => name)).toEqual(wanted);
  }
  net.addModule('10', new nn.Linear(2, 1, { bias: false }));
  expect([...net.stateDict()].map(([name, { shape }]) => `${name} ${shape}`)).toContain('10.weight 1,2');
  expect([...net.stateDict().keys()]).toEqual(wanted);
});
