/** @file The hot operators: the short way gives the very bits of the general one, values and gradients. */
import { describe, expect, test } from 'vitest';
import { type HotForm, hotForms } from '../../tools/hot-ops.ts';
import { native } from '../addon/addon.ts';
import { hotFunctions, hotMethods } from '../generated/hot-ops.ts';
import {
  autocast,
  callOp,
  enableGrad,
  float64,
  inferenceMode,
  int64,
  layerNorm,
  linear,
  manualSeed,
  noGrad,
  ones,
  randint,
  randn,
  scope,
  Tensor,
  zeros,
} from '../index.ts';

/** Arguments that suit an operator. */
const particular: Readonly<Record<string, () => unknown[]>> = {
  mm: () => [randn(3, 4), randn(4, 2)],
  matmul: () => [randn(2, 3, 4), randn(4, 2)],
  bmm: () => [randn(2, 3, 4), randn(2, 4, 2)],
  addmm: () => [randn(2), randn(3, 4), randn(4, 2)],
  linear: () => [randn(3, 4), randn(2, 4), randn(2)],
  layer_norm: () => [randn(3, 4), [4], randn(4), randn(4), 1e-5],
  rms_norm: () => [randn(3, 4), [4], randn(4)],
  embedding: () => [randn(5, 4), randint(5, [2, 3]), -1],
  cross_entropy_loss: () => [randn(4, 5), randint(5, [4]), null, 1, -100, 0.1],
  nll_loss: () => [randn(4, 5), randint(5, [4]), null, 1, -100],
  nll_loss_nd: () => [randn(4, 5), randint(5, [4]), null, 1, -100],
  scaled_dot_product_attention: () => [randn(1, 2, 3, 4), randn(1, 2, 3, 4), randn(1, 2, 3, 4), null, 0, true],
  dropout: () => [randn(3, 4), 0.5, false],
  view: () => [randn(3, 4), [2, 6]],
  reshape: () => [randn(3, 4).t(), [2, -1]],
  expand: () => [randn(3, 1), [2, -1, 4]],
  permute: () => [randn(3, 4, 2), [2, 0, 1]],
  repeat: () => [randn(3, 4), [2, 1]],
  narrow: () => [randn(3, 4), 1, 1, 2],
  cat: () => [[randn(2, 3), randn(2, 3)], 1],
  stack: () => [[randn(2, 3), randn(2, 3)], 1],
  'split.Tensor': () => [randn(2, 5), 2, 1],
  chunk: () => [randn(2, 5), 2, 1],
  'sum.dim_IntList': () => [randn(2, 3, 4), [0, 2], true],
  'mean.dim': () => [randn(2, 3, 4), 1, false],
  'where.self': () => [randn(3).gt(0), randn(3), randn(3)],
  'where.ScalarOther': () => [randn(3).gt(0), randn(3), -Infinity],
  'masked_fill.Scalar': () => [randn(3), randn(3).gt(0), -1e9],
  gather: () => [randn(3, 4), 1, randint(4, [3, 2])],
  index_select: () => [randn(3, 4), 1, randint(4, [2])],
  log: () => [randn(3).abs()],
  sqrt: () => [randn(3).abs()],
  rsqrt: () => [randn(3).abs()],
  sqrt_: () => [randn(3).abs()],
  t: () => [randn(3, 4)],
  'select.int': () => [randn(3, 4), 1, 2],
  'transpose.int': () => [randn(3, 4), 0, 1],
};

function generalArgs(form: HotForm): unknown[] {
  return [...form.args].map((code) => (code === 'T' ? randn(2, 3) : code === 'N' ? 1.5 : 0));
}

function tensorsIn(value: unknown): Tensor[] {
  if (value instanceof Tensor) return [value];
  return Array.isArray(value) ? value.flatMap(tensorsIn) : [];
}

function copied(value: unknown, grad: boolean): unknown {
  if (Array.isArray(value)) return value.map((each) => copied(each, grad));
  if (!(value instanceof Tensor)) return value;
  const copy = value.detach().clone();
  return grad && copy.dtype.isFloatingPoint ? copy.requiresGrad_() : copy;
}

function gradients(outputs: readonly Tensor[], inputs: readonly Tensor[]): unknown[] {
  const wanted = inputs.filter((each) => each.requiresGrad);
  const roots = outputs.filter((each) => each.requiresGrad).map((each) => each.mul(each.detach().add(1)).sum());
  if (wanted.length === 0 || roots.length === 0 || !native.isGradEnabled()) return [];
  const handles = native.gradOf(
    roots.map((each) => each.handle),
    wanted.map((each) => each.handle),
    null,
    false,
    false,
    true,
  );
  return handles.map((handle) => (handle === null ? null : Tensor.adopt(handle).toArray()));
}

/** Runs one form in both ways and compares everything. */
function compare(form: HotForm, call: (args: unknown[]) => unknown, grad: boolean): void {
  const args = (particular[form.op] ?? (() => generalArgs(form)))();
  const mine = copied(args, grad) as unknown[];
  const theirs = copied(args, grad) as unknown[];
  const inPlace = /_(\.|$)/.test(form.op);
  const enter = (list: unknown[]): unknown[] =>
    grad && inPlace ? list.map((each) => (each instanceof Tensor && each.requiresGrad ? each.clone() : each)) : list;
  const [a, b] = [enter(mine), enter(theirs)];
  const got = tensorsIn(call(a));
  const want = tensorsIn(callOp(`aten::${form.op}`, b));
  expect(got.map((each) => [each.dtype.name, each.shape, each.stride(), each.requiresGrad, each.isLeaf])).toEqual(
    want.map((each) => [each.dtype.name, each.shape, each.stride(), each.requiresGrad, each.isLeaf]),
  );
  expect(got.map((each) => each.toArray())).toEqual(want.map((each) => each.toArray()));
  expect(tensorsIn(a).map((each) => [each.toArray(), each.version])).toEqual(
    tensorsIn(b).map((each) => [each.toArray(), each.version]),
  );
  expect(gradients(got, tensorsIn(mine))).toEqual(gradients(want, tensorsIn(theirs)));
}

describe('hot operators', () => {
  manualSeed(0);
  for (const form of hotForms) {
    test(`${form.op} (${form.args})`, () => {
      scope(() => {
        const asFunction = (args: unknown[]): unknown =>
          (hotFunctions[form.name] as (...all: unknown[]) => unknown)(...args);
        const method = hotMethods[form.name] as ((...all: unknown[]) => unknown) | undefined;
        for (const grad of [false, true]) {
          compare(form, asFunction, grad);
          if (method !== undefined) compare(form, ([self, ...rest]) => method.apply(self, rest), grad);
          noGrad(() => compare(form, asFunction, grad));
        }
      });
    });
  }

  test('results of views and of the short way track in-place changes', () => {
    scope(() => {
      const base = zeros(4);
      const view = base.view(2, 2);
      view.add_(1);
      expect([base.toArray(), base.version]).toEqual([[1, 1, 1, 1], view.version]);
      const w = ones(2).requiresGrad_();
      const made = ones(2).mul(2); // made below autograd
      const product = made.mul(w).sum();
      made.add_(1);
      expect(() => native.backward([product.handle], null, null, false, null)).toThrow(
        /modified by an inplace operation/,
      );
    });
  });

  test('autocast and inference mode are respected', () => {
    scope(() => {
      const [x, w, b] = [randn(2, 3), randn(4, 3), randn(4)];
      const kinds = (): unknown =>
        [linear(x, w, b), x.matmul(w.t()), layerNorm(x, [3]), x.add(x), x.softmax(1)].map((each) => [
          each.dtype.name,
          each.isInference(),
        ]);
      const general = (): unknown =>
        (
          [
            ['linear', [x, w, b]],
            ['matmul', [x, w.t()]],
            ['layer_norm', [x, [3]]],
            ['add.Tensor', [x, x]],
            ['softmax.int', [x, 1]],
          ] as const
        ).map(([op, args]) => {
          const made = callOp(`aten::${op}`, args) as Tensor;
          return [made.dtype.name, made.isInference()];
        });
      for (const mode of [
        <T>(body: () => T) => autocast({ dtype: 'bfloat16' }, body),
        inferenceMode,
        noGrad,
        enableGrad,
      ]) {
        expect(mode(kinds)).toEqual(mode(general));
      }
      expect(autocast({ dtype: 'bfloat16' }, () => linear(x, w, b).dtype.name)).toBe('bfloat16');
      expect(inferenceMode(() => x.add(x).isInference())).toBe(true);
    });
  });

  test('disposed, foreign and missing arguments are errors', () => {
    const gone = ones(2);
    gone.dispose();
    const x = ones(2);
    expect(() => x.add(gone)).toThrow(/^add: this tensor was disposed of/);
    expect(() => linear(x, gone)).toThrow(/disposed of/);
    expect(() => (hotMethods['add'] as (...all: unknown[]) => unknown).call({ h: 99_999 }, x)).toThrow(
      /another thread/,
    );
    expect(() => (hotMethods['add'] as (...all: unknown[]) => unknown).call({}, x)).toThrow(/expected a tensor/);
    expect(() => x.view(Number.NaN)).toThrow(/expected an integer/);
    expect(() => x.softmax(0.5)).toThrow(/expected an integer/);
  });
});

describe('linear', () => {
  const shapes: readonly (readonly [string, () => Tensor, () => Tensor, (() => Tensor) | null])[] = [
    ['matrix', () => randn(5, 4), () => randn(3, 4), () => randn(3)],
    ['no bias', () => randn(5, 4), () => randn(3, 4), null],
    ['batch', () => randn(2, 5, 4), () => randn(3, 4), () => randn(3)],
    ['batch, no bias', () => randn(2, 2, 5, 4), () => randn(3, 4), null],
    ['batch of batches', () => randn(2, 2, 5, 4), () => randn(3, 4), () => randn(3)],
    ['vector', () => randn(4), () => randn(3, 4), () => randn(3)],
    ['strided input', () => randn(4, 5).t(), () => randn(3, 4), () => randn(3)],
    ['strided batch', () => randn(5, 2, 4).transpose(0, 1), () => randn(3, 4), () => randn(3)],
    ['strided weight', () => randn(5, 4), () => randn(4, 3).t(), () => randn(3)],
    ['one row', () => randn(1, 4), () => randn(1, 4), () => randn(1)],
    ['no rows', () => randn(0, 4), () => randn(3, 4), () => randn(3)],
    [
      'float64',
      () => randn(5, 4, { dtype: float64 }),
      () => randn(3, 4, { dtype: float64 }),
      () => randn(3, { dtype: float64 }),
    ],
    ['large', () => randn(65, 130), () => randn(70, 130), () => randn(70)],
  ];
  test.each(shapes)('%s: bits of libtorch, also of second derivatives', (_, makeInput, makeWeight, makeBias) => {
    scope(() => {
      const run = (call: (...args: Tensor[]) => Tensor): unknown => {
        manualSeed(1);
        const leaves = [makeInput(), makeWeight(), ...(makeBias === null ? [] : [makeBias()])].map((each) =>
          each.detach().requiresGrad_(),
        );
        const handles = leaves.map((each) => each.handle);
        const output = call(...leaves);
        const loss = output.mul(output).sum();
        const first = native
          .gradOf([loss.handle], handles, null, true, true, false)
          .map((handle) => Tensor.adopt(handle!));
        const total = first.map((each) => each.pow(2).sum()).reduce((a, b) => a.add(b));
        const second = native
          .gradOf([total.handle], handles, null, false, false, true)
          .map((handle) => (handle === null ? null : Tensor.adopt(handle).toArray()));
        return [output.toArray(), first.map((each) => [each.stride(), each.toArray()]), second];
      };
      const short = run((...args) => linear(args[0] as Tensor, args[1] as Tensor, args[2] ?? null));
      const long = run((...args) => callOp('aten::linear', args) as Tensor);
      expect(short).toEqual(long);
    });
  });

  test('part of the gradients, and freed buffers', () => {
    scope(() => {
      const [x, w, b] = [randn(2, 3), randn(4, 3).requiresGrad_(), randn(4).requiresGrad_()];
      const y = enableGrad(() => linear(x, w, b));
      expect([y.requiresGrad, x.requiresGrad]).toEqual([true, false]);
      const [gw] = native.gradOf([y.sum().handle], [w.handle], null, false, false, false);
      expect(Tensor.adopt(gw!).shape).toEqual([4, 3]);
      expect(() => native.gradOf([y.sum().handle], [w.handle], null, false, false, false)).toThrow(
        /second time|already been freed/,
      );
      expect(() => linear(x, randn(4, 5))).toThrow(/linear: /);
      expect(() => linear(x, zeros(4, 3, { dtype: int64 }))).toThrow(/linear: /);
    });
  });

  test('linear is one node of the graph: the short way is taken in an ordinary thread', () =>
    scope(() => {
      const y = linear(randn(2, 3), randn(4, 3).requiresGrad_(), randn(4));
      expect(y.gradFn?.name).toBe('LinearBackward0'); // libtorch's own would be AddmmBackward0
    }));
});
