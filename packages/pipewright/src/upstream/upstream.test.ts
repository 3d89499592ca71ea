/**
 * @file The behaviours that PyTorch's own tests of pipelining ask for, in our words: what a stage's backward gives, how
 * batches are cut, what pipes and stages are called and compute, on one rank, on thread ranks and on processes.
 */
import {
  AutogradFunction,
  cat,
  type FunctionContext,
  float64,
  inputBackward,
  nn,
  randn,
  scope,
  type Tensor,
} from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { casesOnProcesses, casesOnThreads } from '../../testing/launch.ts';
import {
  mergeChunks,
  PipelineRuntime,
  PipelineStage,
  pipeline,
  pipeSplit,
  SplitPoint,
  splitArgsKwargsIntoChunks,
  stageBackward,
  TensorChunkSpec,
} from '../index.ts';

const WIDTH = 6;
const input = (): Tensor => randn(4, WIDTH, { dtype: float64 }).requiresGrad_();
const sumOfSquares = (a: Tensor, b: Tensor): Tensor => a.sub(b).square().sum();

class Mlp extends nn.Module {
  net1 = new nn.Linear(WIDTH, WIDTH);
  net2 = new nn.Linear(WIDTH, WIDTH);
  forward(x: Tensor): Tensor {
    return this.net2.forward(this.net1.forward(x).relu());
  }
}

/** Gradients of the parameters, which are then dropped. */
function takeGrads(module: nn.Module): (number[] | undefined)[] {
  return module.parameters().map((each) => {
    const found = each.grad?.flatten().toArray() as number[] | undefined;
    each.grad = null;
    return found;
  });
}

function expectNear(got: unknown, want: unknown): void {
  const [a, b] = [got, want].map((each) => (each as unknown[]).flat(3)) as [number[], number[]];
  expect(a.length).toBe(b.length);
  a.forEach((value, i) => expect(Math.abs(value - (b[i] as number))).toBeLessThan(1e-10));
}

describe('the backward of a stage', () => {
  const modules: Record<string, () => nn.Module & { forward(x: Tensor): Tensor }> = {
    'two layers': () => new Mlp(),
    'several values in the middle': () => {
      class Forked extends nn.Module {
        left = new nn.Linear(WIDTH, 3);
        right = new nn.Linear(WIDTH, 3);
        join = new nn.Linear(WIDTH, WIDTH);
        forward(x: Tensor): Tensor {
          const parts = [this.left.forward(x), this.right.forward(x)];
          const both = parts.map((part) => part.relu());
          return this.join.forward(cat(both, 1));
        }
      }
      return new Forked();
    },
    'one weight used twice': () => {
      class Shared extends nn.Module {
        w = new nn.Parameter(randn(WIDTH, WIDTH));
        forward(x: Tensor): Tensor {
          return x.matmul(this.w).relu().matmul(this.w);
        }
      }
      return new Shared();
    },
    'a custom function': () => {
      class Product extends AutogradFunction {
        static forward(ctx: FunctionContext, a: Tensor, b: Tensor): Tensor {
          ctx.saveForBackward(a, b);
          return a.matmul(b);
        }
        static backward(ctx: FunctionContext, grad: Tensor): (Tensor | null)[] {
          const [a, b] = ctx.savedTensors as [Tensor, Tensor];
          return [grad.matmul(b.t()), a.t().matmul(grad)];
        }
      }
      class Custom extends nn.Module {
        w = new nn.Parameter(randn(WIDTH, WIDTH));
        forward(x: Tensor): Tensor {
          return Product.apply(x, this.w) as Tensor;
        }
      }
      return new Custom();
    },
    'a view as the output': () => {
      class Viewed extends nn.Module {
        fc = new nn.Linear(WIDTH, WIDTH);
        forward(x: Tensor): Tensor {
          return this.fc.forward(x).view(-1).view(4, WIDTH);
        }
      }
      return new Viewed();
    },
  };

  test.each(Object.keys(modules))('whole and in two halves, of %s, over several microbatches', (name) => {
    scope(() => {
      const module = modules[name]?.() as nn.Module & { forward(x: Tensor): Tensor };
      module.double();
      const inputs = [input(), input(), input()];
      const outGrads = inputs.map(() => randn(4, WIDTH, { dtype: float64 }));
      inputs.forEach((x, i) => module.forward(x).backward(outGrads[i] as Tensor));
      const want = takeGrads(module);
      const wantInputs = inputs.map((x) => {
        const grad = x.grad?.toArray();
        x.grad = null;
        return grad;
      });
      const whole = inputs.map((x, i) =>
        stageBackward([module.forward(x)], [outGrads[i] as Tensor], [x])[0]?.toArray(),
      );
      expectNear(whole, wantInputs);
      expectNear(takeGrads(module), want);
      const halves = inputs.map((x, i) => {
        const outputs = [module.forward(x)];
        const { inputGrads, weights } = inputBackward({
          outputs,
          gradOutputs: [outGrads[i] as Tensor],
          inputs: [null, x],
        });
        expect(inputGrads[0]).toBeNull(); // what is no tensor has no gradient
        return { grad: inputGrads[1]?.toArray(), weights };
      });
      expectNear(halves.map(({ grad }) => grad), wantInputs); // biome-ignore format: one line
      expect(module.parameters().every((each) => each.grad === null)).toBe(true); // weights wait
      for (const { weights } of halves) weights.run();
      expectNear(takeGrads(module), want);
    });
  });

  test('from a loss, without gradients given', () => {
    scope(() => {
      const module = new Mlp().double();
      const [x, target] = [input(), input().detach()];
      sumOfSquares(module.forward(x), target).backward();
      const [want, wantInput] = [takeGrads(module), x.grad?.toArray()];
      x.grad = null;
      const [dx] = stageBackward([sumOfSquares(module.forward(x), target)], [null], [x]);
      expectNear(dx?.toArray(), wantInput);
      expectNear(takeGrads(module), want);
    });
  });
});

describe('microbatches', () => {
  test('arguments of different lengths are cut along their first dimension, and merged again', () => {
    scope(() => {
      const args = [randn(8, 3), randn(16, 3), randn(32, 3)];
      const kwargs = { x0: args[0] as Tensor, x1: args[1] as Tensor, x2: args[2] as Tensor };
      const [argChunks, kwargChunks] = splitArgsKwargsIntoChunks(args, kwargs, 2, { lengths: 'any' });
      expect(argChunks.map((chunk) => chunk.map((each) => (each as Tensor).size(0)))).toEqual([[4, 8, 16], [4, 8, 16]]); // biome-ignore format: one line
      expect(kwargChunks.map(({ x0, x2 }) => [(x0 as Tensor).size(0), (x2 as Tensor).size(0)])).toEqual([[4, 16], [4, 16]]); // biome-ignore format: one line
      const merged = mergeChunks(argChunks, args.map(() => new TensorChunkSpec(0))) as Tensor[]; // biome-ignore format: one line
      merged.forEach((each, i) => expect(each.equal(args[i] as Tensor)).toBe(true));
      const named = mergeChunks(kwargChunks, TensorChunkSpec.fromDict({ x0: 0, x1: 0, x2: 0 })) as typeof kwargs;
      expect(named.x1.equal(kwargs.x1)).toBe(true);
    });
  });
});

describe('a pipe', () => {
  class Transformer extends nn.Module {
    layers = new nn.ModuleList(Array.from({ length: 8 }, () => new Mlp()));
    forward(x: Tensor): Tensor {
      let y = x;
      for (const layer of this.layers) y = layer.forward(y);
      return y;
    }
  }

  test.each([
    [2, 4],
    [4, 2],
  ])('of eight layers in %i stages has every layer once, under its own name', (stages, perStage) => {
    // biome-ignore format: one line
    scope(() => {
      const model = new Transformer();
      const x = randn(4, WIDTH);
      const spec = Object.fromEntries(
        Array.from({ length: stages - 1 }, (_, i) => [`layers.${(i + 1) * perStage}`, SplitPoint.BEGINNING]),
      );
      const pipe = pipeline(model, [x], { splitSpec: spec });
      expect(pipe.numStages).toBe(stages);
      const layers = Array.from({ length: stages }, (_, i) => {
        const names = pipe.getStageModule(i).namedParameters().map(([name]) => name); // biome-ignore format: one line
        return [...new Set(names.map((name) => Number(name.split('.')[1])))];
      });
      expect(layers.every((each) => each.length === perStage)).toBe(true);
      expect(layers.flat()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
      expect((pipe.forward(x) as Tensor).equal(model.forward(x))).toBe(true);
    });
  });

  test('keeps the names of nested modules, of tensors of the root, and of what hooks see', () => {
    class Block extends nn.Module {
      conv = new nn.Conv2d(2, 2, 3, { padding: 1 });
      lin0 = new nn.Linear(4, 4);
      forward(x: Tensor, constant: Tensor): Tensor {
        return this.lin0.forward(this.conv.forward(x)).add(constant).relu();
      }
    }
    class Model extends nn.Module {
      block0 = new Block();
      block1 = new Block();
      scale = new nn.Parameter(randn(4));
      forward(x: Tensor, constant: Tensor): Tensor {
        const y = this.block0.forward(x, constant);
        pipeSplit();
        return this.block1.forward(y, constant).mul(this.scale);
      }
    }
    scope(() => {
      const model = new Model();
      const [x, constant] = [randn(1, 2, 4, 4), randn(4)];
      const pipe = pipeline(model, [x, constant], { dynamicShapes: false });
      expect(pipe.numStages).toBe(2);
      const names = [0, 1].flatMap((i) => [...pipe.getStageModule(i).stateDict().keys()]);
      expect(names.sort()).toEqual([...model.stateDict().keys()].sort());
      expect((pipe.forward(x, constant) as Tensor).equal(model.forward(x, constant))).toBe(true);
    });
  });
});

describe('a stage', () => {
  test('with weight work of its own runs it once per microbatch under a schedule that knows F and B only', () => {
    for (const schedule of ['GPipe', '1F1B', 'ZBH1'] as const)
      scope(() => {
        let runs = 0;
        const stage = new PipelineStage(new Mlp().double(), 0, 1, { dwBuilder: () => () => void runs++ });
        using runtime = new PipelineRuntime(stage, schedule, { microbatches: 4, lossFn: sumOfSquares });
        runtime.step(randn(8, WIDTH, { dtype: float64 }), { target: randn(8, WIDTH, { dtype: float64 }) });
        expect({ schedule, runs, held: stage.inFlight }).toEqual({ schedule, runs: 4, held: 0 });
      });
  });

  test('refuses the weight half before the input half, and shapes and types that were declared otherwise', () => {
    scope(() => {
      const stage = new PipelineStage(new Mlp(), 0, 1, { dwBuilder: () => () => undefined });
      expect(() => stage.backwardWeightOneChunk(0)).toThrow(/weight backward of microbatch 0 without the input half/);
      const declared = new PipelineStage(new Mlp(), 0, 1, { inputArgs: randn(2, WIDTH), outputArgs: randn(2, WIDTH) });
      using runtime = new PipelineRuntime(declared, 'GPipe', { microbatches: 2 });
      expect(() => runtime.eval(randn(6, WIDTH))).toThrow(
        /inputs differs from inputArgs.*declared float32\[2, 6\]; got float32\[3, 6\]/s,
      );
      expect(() => runtime.eval(randn(4, WIDTH).int())).toThrow(/got int32\[2, 6\]/);
      expect(runtime.eval(randn(4, WIDTH))!.shape).toEqual([4, WIDTH]);
    });
  });
});

interface Result {
  readonly output: number[] | null;
  readonly plainOutput: number[];
  readonly loss: number;
  readonly plainLoss: number;
  readonly grads: Record<string, number[]>;
  readonly want: Record<string, number[]>;
  readonly keys: string[];
  readonly allKeys: string[];
  readonly inFlight: number;
}

const ways = ['tracedMarks', 'tracedSpec', 'tracedKwargs', 'manual'];
const cases = ways.flatMap((way) => ['GPipe', '1F1B'].map((schedule) => ({ way, schedule })));
const program = new URL('../../testing/ranks/upstream.mjs', import.meta.url);

const kinds: Record<string, () => Promise<unknown>> = {
  threads: () => casesOnThreads(program, 2, cases),
  processes: () => casesOnProcesses(program, 2, cases),
};

test.each(Object.keys(kinds))(
  'stages traced and hand-made, on two %s, compute what the model does',
  async (kind) => {
    const results = (await kinds[kind]?.()) as Result[][];
    cases.forEach((one, i) => {
      const [first, last] = results.map((ofRank) => ofRank[i]) as [Result, Result];
      expect(first.output, JSON.stringify(one)).toBeNull();
      expectNear(last.output, last.plainOutput);
      expect(Math.abs(last.loss - last.plainLoss)).toBeLessThan(1e-10);
      for (const { grads, want, keys, allKeys, inFlight } of [first, last]) {
        for (const [name, grad] of Object.entries(grads)) expectNear(grad, want[name]);
        expect(keys.every((key) => allKeys.includes(key))).toBe(true);
        expect(inFlight).toBe(0);
      }
      const names = new Set([first, last].flatMap(({ grads }) => Object.keys(grads)));
      expect([...names].sort()).toEqual(Object.keys(first.want).sort());
    });
  },
  120_000,
);
