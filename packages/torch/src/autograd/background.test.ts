/** @file Backwards on a thread of their own: the same gradients, the same functions called, the same errors. */
import { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { leakFree } from '../../testing/gradients.ts';
import { getNumThreads } from '../distributed/threads/settings.ts';
import {
  AutogradFunction,
  backward,
  checkpoint,
  type FunctionContext,
  float64,
  linear,
  manualSeed,
  randn,
  scope,
  startBackward,
  type Tensor,
} from '../index.ts';

class Double extends AutogradFunction {
  static forward(_ctx: FunctionContext, x: Tensor): Tensor {
    return x.mul(2);
  }
  static backward(_ctx: FunctionContext, grad: Tensor): Tensor {
    return grad.mul(2);
  }
}

interface Net {
  readonly weights: readonly Tensor[];
  readonly x: Tensor;
  readonly forward: (x: Tensor) => Tensor;
}

/** A net with whatever autograd can meet: plain operators, a custom function, a checkpoint, a hook. */
function net(kind: 'plain' | 'functions', seen: string[] = []): Net {
  manualSeed(3);
  const weights = [0, 1, 2].map(() => randn([6, 6], { dtype: float64 }).requiresGrad_());
  const [a, b, c] = weights as [Tensor, Tensor, Tensor];
  const x = randn([4, 6], { dtype: float64 }).requiresGrad_();
  if (kind === 'plain') return { weights, x, forward: (input) => linear(linear(linear(input, a).tanh(), b).tanh(), c) };
  a.registerHook((grad) => {
    seen.push('hook');
    return grad.mul(3);
  });
  const forward = (input: Tensor): Tensor =>
    linear(
      checkpoint((y: Tensor) => linear(y, b).tanh(), [Double.apply(linear(input, a)) as Tensor]),
      c,
    );
  return { weights, x, forward };
}

const arraysOf = ({ weights, x }: Net): unknown[] => [...weights, x].map((tensor) => tensor.grad?.toArray() ?? null);

describe.each(['plain', 'functions'] as const)('%s', (kind) => {
  test('gradients are those of backward, with work in between', () => {
    scope(() => {
      const expected = net(kind);
      const mine = net(kind);
      for (let i = 0; i < 3; i++) {
        backward(expected.forward(expected.x).sum());
        const run = startBackward(mine.forward(mine.x).sum());
        const beside = mine.forward(mine.x.detach().mul(i + 1)).sum();
        run.finish();
        expect(run.isPending).toBe(false);
        backward(expected.forward(expected.x.detach().mul(i + 1)).sum());
        backward(beside);
        expect(arraysOf(mine)).toEqual(arraysOf(expected));
      }
    });
  });

  test('another backward waits for it', () => {
    scope(() => {
      const expected = net(kind);
      const mine = net(kind);
      for (const factor of [1, 5]) backward(expected.forward(expected.x).mul(factor).sum());
      const [first, second] = [1, 5].map((factor) => mine.forward(mine.x).mul(factor).sum()) as [Tensor, Tensor];
      const run = startBackward(first);
      backward(second);
      run.finish();
      expect(arraysOf(mine)).toEqual(arraysOf(expected));
    });
  });

  test('leaves nothing', () => {
    leakFree(() => {
      const { forward, x } = net(kind);
      const run = startBackward(forward(x), { gradTensors: [randn([4, 6], { dtype: float64 })] });
      run.finish();
    });
  });
});

test('it runs while this thread is busy', () => {
  scope(() => {
    const { forward, x, weights } = net('plain');
    const cores = getNumThreads();
    const run = startBackward(forward(x).sum(), { threads: 1 });
    const until = performance.now() + 60_000;
    while (!run.isDone && performance.now() < until);
    expect([run.isDone, run.isPending]).toEqual([true, true]);
    expect(weights[0]?.grad).not.toBeNull();
    run.finish();
    expect(getNumThreads()).toBe(cores);
  });
});

test('functions run on this thread, in finish; what they throw is thrown there', () => {
  scope(() => {
    const seen: string[] = [];
    const { forward, x } = net('functions', seen);
    const run = startBackward(forward(x).sum());
    const until = performance.now() + 20;
    while (performance.now() < until);
    expect([seen, run.isDone]).toEqual([[], false]);
    run.finish();
    expect(seen).toEqual(['hook']);
    x.registerHook(() => {
      throw new RangeError('no such gradient');
    });
    const failing = startBackward(forward(x).sum());
    expect(() => failing.finish()).toThrow(RangeError);
    failing.finish(); // a second time nothing
    startBackward(x.detach().requiresGrad_().sum()).finish();
  });
});

test('bad arguments', () => {
  scope(() => {
    const { forward, x } = net('plain');
    const loss = forward(x).sum();
    expect(() => startBackward(loss.detach())).toThrow('startBackward: tensor 0 does not require a gradient');
    expect(() => startBackward(forward(x))).toThrow('only a scalar needs no gradient');
    expect(() => startBackward(loss, { threads: 0 })).toThrow('startBackward: threads is 0');
    expect(() => startBackward(loss, { thread: 1 } as object)).toThrow("did you mean 'threads'?");
    const run = startBackward(loss);
    expect(() => startBackward(forward(x).sum())).toThrow('another backward is under way');
    run.finish();
  });
});

test('a thread that ends without finish', async () => {
  const url = new URL('../../dist/index.js', import.meta.url).href;
  const worker = new Worker(
    `const { ones, startBackward } = await import('${url}');
     const x = ones([3]).requiresGrad_();
     x.registerHook((grad) => grad);
     startBackward(x.mul(2).sum());`,
    { eval: true, execArgv: ['--input-type=module'] },
  );
  const code = await new Promise((resolve, reject) => worker.on('error', reject).on('exit', resolve));
  expect(code).toBe(0);
});
