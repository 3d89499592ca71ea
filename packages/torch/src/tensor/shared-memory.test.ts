/** @file Memory that a tensor and an array share lives as long as either, and stays where it is. */
import { once } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { createContext, runInContext, runInNewContext } from 'node:vm';
import { MessageChannel, markAsUntransferable, Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { codeOf } from '../../testing/error-code.ts';
import { callOp, fromTypedArray, nn, ones, type Tensor, zeros } from '../index.ts';

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;
if (!('transfer' in ArrayBuffer.prototype)) setFlagsFromString('--harmony-rab-gsab-transfer'); // Node 20
const transfer = runInNewContext('ArrayBuffer.prototype.transfer') as (
  this: ArrayBufferLike,
  length?: number,
) => ArrayBuffer;

/** Makes and frees blocks of the same size, so that freed memory would be handed out again and written. */
function churn(bytes: number): void {
  const kept: Tensor[] = [];
  for (let i = 0; i < 600; i++) kept.push(callOp('aten::full', [[bytes / 4], 777]) as Tensor);
  for (const tensor of kept) tensor.dispose();
}

describe('sharedArray', () => {
  const cases: Record<string, (weight: Tensor) => void> = {
    'setData of the same type': (weight) => void weight.setData(zeros([64, 4])),
    'setData of another shape and type': (weight) => void weight.setData(zeros([2], { dtype: 'float64' })),
    dispose: (weight) => weight.dispose(),
    'set_ to another storage': (weight) => void callOp('aten::set_.source_Tensor', [weight, zeros([3])]),
  };
  for (const [name, change] of Object.entries(cases)) {
    test(`keeps its memory after ${name}`, () => {
      const weight = callOp('aten::full', [[64, 4], 3.5]) as Tensor;
      const array = weight.sharedArray() as Float32Array;
      change(weight);
      churn(array.byteLength);
      expect(array.every((value) => value === 3.5)).toBe(true);
      array.fill(4); // would write into memory of somebody else
      churn(array.byteLength);
      expect(array.every((value) => value === 4)).toBe(true);
    });
  }

  test('keeps its memory when its module is converted', () => {
    const layer = new nn.Linear(16, 16);
    const array = layer.weight.sharedArray() as Float32Array;
    const before = Float32Array.from(array);
    layer.double();
    churn(array.byteLength);
    expect(array).toEqual(before);
    expect(layer.weight.dtype.name).toBe('float64');
  });

  test('growing the tensor is refused, shrinking is not, and after the array is gone both are allowed', () => {
    const x = ones([8]);
    (() => {
      const array = x.sharedArray() as Float32Array;
      expect(codeOf(() => x.resize_([100_000]))).toBe('NOT_RESIZABLE');
      expect(codeOf(() => callOp('aten::add.out', [ones([100_000]), 1], { out: x }))).not.toBe('no error');
      churn(32);
      expect([...array]).toEqual([1, 1, 1, 1, 1, 1, 1, 1]);
      x.resize_([2]).fill_(5);
      expect([...array]).toEqual([5, 5, 1, 1, 1, 1, 1, 1]);
    })();
    gc();
    return new Promise<void>((resolve) => setTimeout(resolve, 10)).then(() => {
      gc();
      return new Promise<void>((resolve) => setTimeout(resolve, 10)).then(() => {
        expect(x.resize_([100_000]).shape).toEqual([100_000]);
      });
    });
  });

  test('an out argument that has to grow is refused, one that fits is written', () => {
    const out = zeros([4]);
    const array = out.sharedArray() as Float32Array;
    expect(codeOf(() => callOp('aten::mul.out', [ones([4096]), ones([4096])], { out }))).toBe('NOT_RESIZABLE');
    callOp('aten::mul.out', [ones([4]), ones([4]).mul(2)], { out: callOp('aten::zero_', [out]) });
    expect([...array]).toEqual([2, 2, 2, 2]);
  });

  test('a tensor that was cloned lazily keeps its place', () => {
    const x = ones([16]);
    const array = x.sharedArray() as Float32Array;
    expect(codeOf(() => callOp('aten::_lazy_clone', [x]))).toBe('LIBTORCH');
    x.fill_(6);
    expect(array[15]).toBe(6);
    const y = ones([16]);
    const clone = callOp('aten::_lazy_clone', [y]) as Tensor;
    const own = y.sharedArray() as Float32Array;
    y.fill_(7);
    clone.dispose();
    churn(64);
    expect(own[0]).toBe(7);
  });

  test('two arrays of one tensor, and a transfer, which is refused or copies', () => {
    const x = ones([4]);
    const [first, second] = [x.sharedArray() as Float32Array, x.sharedArray() as Float32Array];
    first[0] = 9;
    expect(second[0]).toBe(9);
    try {
      structuredClone(first.buffer, { transfer: [first.buffer as ArrayBuffer] });
    } catch (error) {
      expect((error as Error).name).toBe('DataCloneError');
    }
    expect(x.at(0).item()).toBe(9);
    expect(second[0]).toBe(9);
  });

  test.each([0, 64, 1 << 20])('a transfer to %i bytes by a method of another context copies', (length) => {
    const x = ones([1024]);
    const array = x.sharedArray() as Float32Array<ArrayBuffer>;
    const moved = transfer.call(array.buffer, length);
    expect(moved.byteLength).toBe(length);
    x.fill_(3);
    expect([...new Float32Array(moved).slice(0, 2)]).toEqual(length === 0 ? [] : [1, 1]);
    churn(4096);
    expect(x.sum().item()).toBe(3072);
  });
});

describe('fromTypedArray with share', () => {
  test('the buffer cannot be transferred away: structuredClone and postMessage copy it or refuse', () => {
    for (const give of [
      (buffer: ArrayBuffer) => void structuredClone(buffer, { transfer: [buffer] }),
      (buffer: ArrayBuffer) => {
        const { port1, port2 } = new MessageChannel();
        try {
          port1.postMessage(buffer, [buffer]);
        } finally {
          port1.close();
          port2.close();
        }
      },
    ]) {
      const data = Float32Array.from({ length: 1024 }, () => 2);
      const x = fromTypedArray(data, [1024], { share: true });
      try {
        give(data.buffer);
      } catch (error) {
        expect((error as Error).name).toBe('DataCloneError');
      }
      expect(data.length).toBe(1024);
      gc();
      churn(4096);
      expect(x.sum().item()).toBe(2048);
      x.fill_(3);
      expect(data[1023]).toBe(3);
    }
  });

  test('methods that move the buffer are refused, where Node has them', () => {
    const data = new Float32Array(8);
    fromTypedArray(data, [8], { share: true });
    const buffer = data.buffer as ArrayBuffer & Partial<Record<'transfer' | 'transferToFixedLength', () => unknown>>;
    for (const name of ['transfer', 'transferToFixedLength'] as const) {
      const move = buffer[name];
      if (move !== undefined) expect(codeOf(() => move.call(buffer))).toBe('NOT_SHAREABLE');
    }
    expect(data.length).toBe(8);
  });

  test.each(['transfer', 'transferToFixedLength'])(
    '%s of the prototype is refused, to any length, where Node has it',
    (name) => {
      const move = (ArrayBuffer.prototype as unknown as Record<string, ((length?: number) => ArrayBuffer) | undefined>)[
        name
      ];
      const data = new Float32Array(1024).fill(2);
      const x = fromTypedArray(data, [1024], { share: true });
      const guarded = (
        ArrayBuffer.prototype as unknown as Record<string, ((length?: number) => ArrayBuffer) | undefined>
      )[name];
      expect(guarded?.name).toBe(move?.name);
      expect(guarded?.length).toBe(move?.length);
      for (const length of [undefined, 0, 16, 4096, 1 << 20]) {
        if (guarded !== undefined) expect(() => guarded.call(data.buffer, length)).toThrow();
      }
      expect(data.length).toBe(1024);
      churn(4096);
      expect(x.sum().item()).toBe(2048);
      expect(guarded === undefined ? 8 : guarded.call(new ArrayBuffer(4), 8).byteLength).toBe(8);
    },
  );

  test('a buffer of another context: its own methods are refused too, to any length', () => {
    const realm = createContext({});
    const data = runInContext('globalThis.data = new Float32Array(1024).fill(2)', realm) as Float32Array<ArrayBuffer>;
    const x = fromTypedArray(data, [1024], { share: true });
    for (const name of ['transfer', 'transferToFixedLength']) {
      for (const length of [undefined, 0, 16, 1 << 20])
        expect(() =>
          runInContext(`ArrayBuffer.prototype.${name}.call(data.buffer, ${String(length)})`, realm),
        ).toThrow();
    }
    expect(data.length).toBe(1024);
    churn(4096);
    expect(x.sum().item()).toBe(2048);
    expect(runInContext('ArrayBuffer.prototype.transfer.call(new ArrayBuffer(4), 8).byteLength', realm)).toBe(8);
  });

  test('a frozen buffer is shared, and stays', () => {
    const data = runInNewContext('new Float32Array(Object.freeze(new ArrayBuffer(16)))') as Float32Array<ArrayBuffer>;
    const x = fromTypedArray(data, [4], { share: true });
    x.fill_(2);
    expect([...data]).toEqual([2, 2, 2, 2]);
    const { transfer } = data.buffer as ArrayBuffer & { transfer: () => unknown };
    expect(() => transfer.call(data.buffer)).toThrow();
    expect(data.length).toBe(4);
  });

  test('where ArrayBuffer.prototype is frozen and moves memory, sharing is refused by name', () => {
    const data = runInNewContext(
      'Object.freeze(ArrayBuffer.prototype); new Float32Array(4)',
    ) as Float32Array<ArrayBuffer>;
    const probe = new ArrayBuffer(8);
    markAsUntransferable(probe);
    let safe = true; // Node 24 and later refuse by themselves
    try {
      transfer.call(probe, 4);
      safe = false;
    } catch {}
    const code = codeOf(() => fromTypedArray(data, [4], { share: true }));
    expect(code).toBe(safe ? 'no error' : 'NOT_SHAREABLE');
    expect(fromTypedArray(data, [4]).sum().item()).toBe(0);
  });

  const moves: Record<string, (data: Float32Array) => unknown> = {
    'the method of another realm': (data) => transfer.call(data.buffer),
    'a stream that reads into it': (data) => {
      const stream = new ReadableStream({
        type: 'bytes',
        start: (controller) => controller.enqueue(new Uint8Array(1)),
      });
      return stream.getReader({ mode: 'byob' }).read(new Uint8Array(data.buffer as ArrayBuffer));
    },
  };
  for (const [name, move] of Object.entries(moves)) {
    test(`the memory outlives a move by ${name}`, async () => {
      const data = new Float32Array(1024).fill(2);
      const x = fromTypedArray(data, [1024], { share: true });
      try {
        await move(data);
      } catch (error) {
        expect((error as Error).name).toBe('TypeError'); // newer versions of Node refuse
      }
      for (let i = 0; i < 3; i++) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      churn(4096);
      expect(x.at(1023).item()).toBe(2);
      x.fill_(3);
      churn(4096);
      expect(x.sum().item()).toBe(3072);
    });
  }

  test('a resizable buffer and the memory of WebAssembly are refused, and copied without share', () => {
    const Resizable = ArrayBuffer as unknown as new (length: number, options: { maxByteLength: number }) => ArrayBuffer;
    const shrinking = new Float32Array(new Resizable(64, { maxByteLength: 1 << 20 }));
    expect(codeOf(() => fromTypedArray(shrinking, [16], { share: true }))).toBe('NOT_SHAREABLE');
    expect(fromTypedArray(shrinking, [16]).sum().item()).toBe(0);

    const wasm = (
      globalThis as unknown as {
        WebAssembly: { Memory: new (size: object) => { buffer: ArrayBuffer; grow(pages: number): void } };
      }
    ).WebAssembly;
    const memory = new wasm.Memory({ initial: 1, maximum: 4 });
    const view = new Float32Array(memory.buffer, 0, 16);
    expect(codeOf(() => fromTypedArray(view, [16], { share: true }))).toBe('NOT_SHAREABLE');
    const copy = fromTypedArray(view, [16]);
    memory.grow(1);
    expect(copy.sum().item()).toBe(0);

    // A refused call leaves the buffer as it was.
    const data = new Float32Array(4);
    expect(codeOf(() => fromTypedArray(data, [5], { share: true }))).toBe('SHAPE');
    structuredClone(data.buffer, { transfer: [data.buffer] });
    expect(data.length).toBe(0);
  });

  test('a buffer of several threads is shared', () => {
    const data = new Int32Array(new SharedArrayBuffer(16));
    const x = fromTypedArray(data, [4], { share: true });
    data[2] = 5;
    expect(x.toArray()).toEqual([0, 0, 5, 0]);
  });

  test('the tensor keeps the memory when the array is gone, and cannot grow', () => {
    const x = (() => fromTypedArray(Float32Array.of(1, 2, 3), [3], { share: true }))();
    gc();
    churn(12);
    expect(x.toArray()).toEqual([1, 2, 3]);
    expect(codeOf(() => x.resize_([100_000]))).toBe('NOT_RESIZABLE');
  });
});

test('an array of a tensor can be shared with a second tensor that outlives the first', () => {
  const again = (() => {
    const x = ones([8]);
    const second = fromTypedArray(x.sharedArray() as Float32Array, [8], { share: true });
    x.dispose();
    return second;
  })();
  gc();
  churn(32);
  expect(again.sum().item()).toBe(8);
});

test('memory of a tensor that was moved to another thread outlives the thread of the tensor', async () => {
  // 64 MB are a mapping of their own: gone, every access is a segmentation fault.
  const worker = new Worker(
    `const { parentPort, workerData } = require('node:worker_threads');
     if (!('transfer' in ArrayBuffer.prototype)) require('node:v8').setFlagsFromString('--harmony-rab-gsab-transfer');
     const transfer = require('node:vm').runInNewContext('ArrayBuffer.prototype.transfer');
     import(workerData).then(({ fromTypedArray, ones }) => {
       const array = ones([1 << 24]).sharedArray();
       const again = fromTypedArray(array, [1 << 24], { share: true }); // kept to the end of the thread
       const moved = transfer.call(array.buffer);
       parentPort.postMessage(moved, [moved]);
       process.on('exit', () => again.dispose());
     });`,
    { eval: true, workerData: new URL('../../dist/index.js', import.meta.url).href, execArgv: [] },
  );
  const came = once(worker, 'message') as Promise<[ArrayBuffer]>;
  const ended = once(worker, 'exit') as Promise<[number]>;
  const [buffer] = await came;
  expect((await ended)[0]).toBe(0);
  const array = new Float32Array(buffer);
  churn(1 << 16);
  expect(array.length).toBe(1 << 24);
  expect(array.every((value) => value === 1)).toBe(true);
  array.fill(2);
  expect(array[(1 << 24) - 1]).toBe(2);
});
