/** @file A recorder sees every operator, whichever way it is called, and nothing once it is taken away. */
import { afterEach, describe, expect, test } from 'vitest';
import {
  AutogradFunction,
  callOp,
  checkpoint,
  type FunctionContext,
  linear,
  nn,
  ones,
  scope,
  type Tensor,
  tensor,
  zeros,
} from '../index.ts';
import { type BoundOp, callGiven, type Recorder, sharesStorage, withRecorder } from '../internal.ts';

/** Notes the names of what it sees and lets it happen. */
function notes(): { seen: string[]; watcher: Recorder } {
  const seen: string[] = [];
  const watcher: Recorder = {
    operator(op: BoundOp, given: readonly unknown[]) {
      seen.push(op.fullName);
      return withRecorder(null, () => callGiven(op, given));
    },
    customFunction(type, args) {
      seen.push(type.name);
      return withRecorder(null, () => (type as unknown as { apply(...given: unknown[]): Tensor }).apply(...args));
    },
    checkpoint(body) {
      seen.push('checkpoint');
      return body();
    },
    alias(given) {
      seen.push('alias');
      return withRecorder(null, () => given.alias());
    },
    deviceOf: () => 'cuda:7',
    beforeAccess(_tensor, what) {
      throw new Error(`no ${what} here`);
    },
  };
  return { seen, watcher };
}

class Twice extends AutogradFunction {
  static forward(_ctx: FunctionContext, x: Tensor): Tensor {
    return x.mul(2);
  }
  static backward(_ctx: FunctionContext, grad: Tensor): Tensor {
    return grad.mul(2);
  }
}

describe('a recorder', () => {
  const x = ones([2, 2]);
  afterEach(() =>
    expect(x.add(x).toArray()).toEqual([
      [2, 2],
      [2, 2],
    ]),
  ); // nobody watches any more

  test('sees operators in every form of call', () => {
    const { seen, watcher } = notes();
    scope(() =>
      withRecorder(watcher, () => {
        x.add(x);
        x.view(4);
        x.view([4]);
        x.flatten();
        x.sum();
        x.add_(0);
        linear(x, x);
        new nn.Linear(2, 2).forward(x);
        callOp('aten::relu', [x]);
        x.at(0, 1);
        x.to('float64');
        x.split(1);
      }),
    );
    expect(seen.filter((name) => !/kaiming|uniform|empty/.test(name))).toEqual([
      'aten::add.Tensor',
      'aten::view',
      'aten::view',
      'aten::flatten.using_ints',
      'aten::sum',
      'aten::add_.Scalar',
      'aten::linear',
      'aten::linear',
      'aten::relu',
      'aten::select.int',
      'aten::select.int',
      'aten::to.dtype_layout',
      'aten::split.Tensor',
    ]);
  });

  test('sees custom functions, checkpoints and aliases', () => {
    const { seen, watcher } = notes();
    scope(() =>
      withRecorder(watcher, () => {
        Twice.apply(x);
        checkpoint((y: Tensor) => y.exp(), [x]);
        x.alias();
      }),
    );
    expect(seen).toEqual(['Twice', 'checkpoint', 'aten::exp', 'alias']);
  });

  test('can refuse reads, and says where a tensor is', () => {
    const { watcher } = notes();
    const one = tensor(1);
    withRecorder(watcher, () => {
      expect(one.device).toBe('cuda:7');
      for (const read of [
        () => one.item(),
        () => one.itemValue(),
        () => one.toArray(),
        () => one.tolist(),
        () => one.toTypedArray(),
        () => one.sharedArray(),
        () => one.dataPtr(),
        () => one.setData(one),
        () => one.backward(),
      ])
        expect(read).toThrow(/^no \w+\(\) here$/);
      expect(String(one)).toBe('tensor(1)');
    });
    expect(one.device).toBe('cpu');
  });

  test('is gone after an error', () => {
    expect(() =>
      withRecorder(notes().watcher, () => {
        throw new Error('stop');
      }),
    ).toThrow('stop');
    expect(tensor(3).item()).toBe(3);
  });
});

test('sharesStorage tells views from copies, on meta too', () => {
  for (const device of ['cpu', 'meta'] as const)
    scope(() => {
      const base = zeros([2, 3], { device });
      expect(sharesStorage(base)).toBe(false);
      expect(sharesStorage(base.t().reshape(6))).toBe(false); // reshape had to copy
      expect(sharesStorage(base.reshape(6))).toBe(true);
      expect(sharesStorage(base.add(1))).toBe(false);
    });
});
