/** @file The choice of overloads: every overload of the table is reachable by the kinds that belong to it. */
import { fc, test as propTest } from '@fast-check/vitest';
import { describe, expect, test } from 'vitest';
import * as torch from '../index.ts';
import { overloads as table } from './generated/overloads.ts';
import { type CallKinds, chooseOverload, type Overload, type Parameter, parseOverload } from './overload.ts';

const parsed = new Map(Object.entries(table).map(([name, text]) => [name, text.split('\n').map(parseOverload)]));

/** The kind that fits a type exactly. */
function exactKind(type: string): string {
  const plain = type.replaceAll('?', '');
  const list = /^(.*)\[\d*\]$/.exec(plain);
  const kinds: Record<string, string> = {
    Tensor: 'T',
    int: 'i',
    float: 'f',
    bool: 'b',
    Scalar: 'f',
    str: 's',
    ScalarType: 'D',
    Device: 'v',
    Layout: 'l',
    MemoryFormat: 'm',
    Generator: 'G',
  };
  const lists: Record<string, string> = { Tensor: 'A', int: 'I', float: 'F', bool: 'B', Scalar: 'F' };
  return (list === null ? kinds[plain] : lists[list[1] as string]) ?? 'x';
}

/** A call that gives the arguments up to `numPositional` by position and those in `named` by name. */
function callOf(overload: Overload, numPositional: number, named: readonly Parameter[]): CallKinds {
  return {
    positional: overload.parameters
      .slice(0, numPositional)
      .map((parameter) => exactKind(parameter.type))
      .join(''),
    names: named.map((parameter) => parameter.key),
    named: named.map((parameter) => exactKind(parameter.type)).join(''),
  };
}

/** Whether two overloads take the same call in the same way: then either may be chosen. */
function sameTypes(a: Overload, b: Overload, call: CallKinds): boolean {
  const type = (overload: Overload, key: string, at: number): string | undefined =>
    (at >= 0
      ? overload.parameters[at]
      : overload.parameters.find((parameter) => parameter.key === key)
    )?.type.replaceAll(/[?\d]/g, '');
  return (
    [...call.positional].every((_, i) => type(a, '', i) === type(b, '', i)) &&
    call.names.every((key) => type(a, key, -1) === type(b, key, -1))
  );
}

function expectChosen(all: readonly Overload[], overload: Overload, call: CallKinds): void {
  const choice = chooseOverload(all, call);
  expect(choice, `${overload.text} <- ${call.positional} ${call.names}`).toBeDefined();
  if (choice === undefined || choice.overload === overload) return;
  expect(
    sameTypes(choice.overload, overload, call),
    `${overload.text} <- ${call.positional} ${call.names}: chose ${choice.overload.text}`,
  ).toBe(true);
}

describe('chooseOverload', () => {
  test('the table has every name and overload', () => {
    expect([parsed.size, [...parsed.values()].flat().length]).toEqual([860, 1149]);
  });

  test('takes every overload with all its arguments', () => {
    for (const all of parsed.values()) {
      for (const overload of all)
        expectChosen(
          all,
          overload,
          callOf(overload, overload.numPositional, overload.parameters.slice(overload.numPositional)),
        );
    }
  });

  test('takes every overload with its required arguments only', () => {
    for (const all of parsed.values()) {
      for (const overload of all) {
        const required = overload.parameters.filter((parameter) => !parameter.hasDefault);
        const numPositional = Math.min(
          overload.numPositional,
          required.filter((parameter) => !parameter.keywordOnly).length,
        );
        expectChosen(
          all,
          overload,
          callOf(
            overload,
            numPositional,
            required.filter((parameter) => parameter.keywordOnly),
          ),
        );
      }
    }
  });

  const anyOverload = fc.constantFrom(
    ...[...parsed.values()].flatMap((all) => all.map((overload) => ({ all, overload }))),
  );
  propTest.prop([anyOverload, fc.nat({ max: 8 }), fc.array(fc.boolean(), { minLength: 20, maxLength: 20 })])(
    'takes any mixture of positional and named arguments',
    ({ all, overload }, cut, given) => {
      const { parameters } = overload;
      const numPositional = Math.min(cut, overload.numPositional);
      const named = parameters.filter(
        (parameter, i) => i >= numPositional && (!parameter.hasDefault || given[i] === true),
      );
      expectChosen(all, overload, callOf(overload, numPositional, named));
    },
  );
});

describe('calls', () => {
  const { arange, cat, float32, float64, full, int64, ones, pow, randn, scope, tensor, where, zeros } = torch;
  const x = arange(6, { dtype: float64 }).reshape(2, 3);

  test('PyTorch forms of the same call agree', () => {
    scope(() => {
      const same = (...all: torch.Tensor[]): void => {
        for (const each of all) expect(each.toArray()).toEqual((all[0] as torch.Tensor).toArray());
      };
      same(
        x.sum(1, true),
        x.sum({ dim: 1, keepdim: true }),
        x.sum([1], { keepdim: true }),
        torch.sum(x, 1, true),
        torch.sum(x, { dim: 1, keepdim: true }),
      );
      same(x.permute(1, 0), x.permute([1, 0]), x.permute({ dims: [1, 0] }), x.T, x.t(), x.transpose(0, 1), x.mT);
      same(x.view(3, -1), x.view([3, -1]), x.reshape(3, 2), torch.reshape(x, [3, 2]));
      same(x.expand(2, 2, 3), x.expand([2, -1, 3]), x.unsqueeze(0).repeat(2, 1, 1));
      same(x.add(x, { alpha: 2 }), x.mul(3), x.add(x).add(x), x.mul(tensor(3)));
      same(x.pow(2), pow(x, 2), x.square(), x.mul(x));
      same(cat([x, x], 1), cat([x, x], { dim: 1 }), x.repeat(1, 2));
      same(where(x.gt(2), x, 0), x.mul(x.gt(2)), where(x.gt(2), x, zeros(1, { dtype: float64 })));
      same(x.std({ dim: 1, correction: 0 }), x.sub(x.mean(1, true)).square().mean(1).sqrt());
      same(x.split(2, 1)[1] as torch.Tensor, x.split([2, 1], { dim: 1 })[1] as torch.Tensor, x.narrow(1, 2, 1));
      same(zeros(2, 3), zeros([2, 3]), zeros({ size: [2, 3] }), full([2, 3], 0).to(float32));
    });
  });

  test('to takes a dtype, a device, both, a tensor or options', () => {
    scope(() => {
      expect(x.to(float32).dtype).toBe(float32);
      expect(x.to('int64').dtype).toBe(int64);
      expect(x.to('meta').device).toBe('meta');
      expect([x.to('meta', float32).device, x.to('meta', float32).dtype]).toEqual(['meta', float32]);
      expect(x.to({ dtype: float32, device: 'cpu' }).dtype).toBe(float32);
      expect(x.to(ones(1)).dtype).toBe(float32);
      expect(x.to(float64).isSame(x)).toBe(true);
      expect(x.to(float64, { copy: true }).isSame(x)).toBe(false);
      expect(() => x.to(7 as never)).toThrow(/to: expected a dtype/);
      expect(() => x.to({ dytpe: float32 } as never)).toThrow(/unknown option 'dytpe'/);
    });
  });

  test('creation takes dtype, device, requiresGrad and generator', () => {
    scope(() => {
      const made = randn(2, 3, { dtype: float64, requiresGrad: true });
      expect([made.dtype, made.requiresGrad, made.shape]).toEqual([float64, true, [2, 3]]);
      const again = (): unknown => torch.rand([2], { generator: new torch.Generator().manualSeed(3) }).toArray();
      expect(again()).toEqual(again());
      expect(torch.empty(2, { device: 'meta' }).device).toBe('meta');
      expect(torch.zerosLike(made, { dtype: int64 }).dtype).toBe(int64);
    });
  });

  test('lists may be written out', () => {
    scope(() => {
      expect(torch.broadcastTensors(ones(2, 1), ones(3)).map((each) => each.shape)).toEqual([
        [2, 3],
        [2, 3],
      ]);
      expect(torch.einsum('ij,kj->ik', [x, x]).shape).toEqual([2, 2]);
    });
  });

  test('several results are an array', () => {
    const [values, indices] = x.max(1);
    expect([values.toArray(), indices.toArray()]).toEqual([
      [2, 5],
      [2, 2],
    ]);
  });

  test('in-place operators return the tensor itself', () => {
    scope(() => {
      const y = ones(2);
      expect(y.add_(1)).toBe(y);
      expect(y.clamp_({ max: 1.5 })).toBe(y);
      expect(torch.mul_(y, 2)).toBe(y);
      expect(y.toArray()).toEqual([3, 3]);
    });
  });

  test('out tensors are filled and returned by callOp', () => {
    scope(() => {
      const out = zeros(2, 3, { dtype: float64 });
      expect(torch.callOp('aten::add.out', [x, x], { out })).toBe(out);
      expect(out.toArray()).toEqual(x.mul(2).toArray());
    });
  });

  test('errors say what there is', () => {
    const message = (body: () => unknown): string => {
      try {
        body();
      } catch (error) {
        return `${(error as torch.TorchError).code} ${(error as Error).message.replace(/libtorch [\d.]+\S*/, 'libtorch')}`;
      }
      return 'no error';
    };
    expect(message(() => x.add('a' as never))).toMatchInlineSnapshot(`
      "NO_OVERLOAD add: no overload takes (Tensor, string); there are:
        add(self: Tensor, other: Scalar, alpha?: Scalar)
        add(self: Tensor, other: Tensor, { alpha?: Scalar })"
    `);
    expect(message(() => x.sum({ dims: 1 } as never))).toMatchInlineSnapshot(`
      "UNKNOWN_OPTION sum: unknown option 'dims' (did you mean 'dim'?); there are:
        sum(self: Tensor, { dtype?: ScalarType? })
        sum(self: Tensor, dim: int[1]?, keepdim?: bool, { dtype?: ScalarType? })"
    `);
    expect(message(() => x.view(1.5))).toMatchInlineSnapshot(
      `"BAD_ARGUMENT view: argument 'size': expected an integer, got 1.5"`,
    );
    expect(message(() => (x as unknown as { add(...args: unknown[]): unknown }).add(x, x, x))).toMatchInlineSnapshot(`
      "NO_OVERLOAD add: no overload takes (Tensor, Tensor, Tensor, Tensor); there are:
        add(self: Tensor, other: Scalar, alpha?: Scalar)
        add(self: Tensor, other: Tensor, { alpha?: Scalar })"
    `);
    expect(message(() => x.matmul(x))).toMatchInlineSnapshot(
      `"LIBTORCH matmul: mm: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"`,
    );
    expect(message(() => x.softmax(9))).toMatchInlineSnapshot(
      `"INDEX softmax: Dimension out of range (expected to be in range of [-2, 1], but got 9)"`,
    );
    expect(message(() => zeros(-1))).toMatchInlineSnapshot(
      `"LIBTORCH aten::zeros: zeros: Dimension size must be non-negative."`,
    );
    const gone = ones(1);
    gone.dispose();
    expect(message(() => x.add(gone))).toMatchInlineSnapshot(
      `"DISPOSED add: this tensor was disposed of (by dispose(), using, or the end of a scope); keep() it, or return it from the scope"`,
    );
    expect(message(() => gone.exp())).toMatchInlineSnapshot(
      `"DISPOSED exp: this tensor was disposed of (by dispose(), using, or the end of a scope); keep() it, or return it from the scope"`,
    );
    expect(message(() => torch.callOp('aten::ad.Tensor', [x, x]))).toMatchInlineSnapshot(
      `"UNKNOWN_OP callOp: libtorch has no operator 'aten::ad.Tensor' (did you mean 'aten::add'?)"`,
    );
    expect(message(() => torch.callOp('aten::add.Tensr', [x, x]))).toMatchInlineSnapshot(
      `"UNKNOWN_OP callOp: libtorch has no overload 'Tensr' of 'aten::add'; there are 'aten::add.Scalar', 'aten::add.Scalar_out', 'aten::add.Tensor', 'aten::add.out'"`,
    );
    expect(message(() => torch.callOp('aten::add.Tensor', [x, null]))).toMatchInlineSnapshot(
      `"BAD_ARGUMENT aten::add.Tensor: argument 'other': expected a tensor, got null"`,
    );
    expect(message(() => torch.callOp('aten::add.Tensor', [x, x], { alhpa: 2 }))).toMatchInlineSnapshot(
      `"UNKNOWN_OPTION aten::add.Tensor: unknown argument 'alhpa' (did you mean 'alpha'?); it takes self, other, alpha?"`,
    );
    expect(message(() => torch.callOp('aten::add.Tensor', [x]))).toMatchInlineSnapshot(
      `"MISSING_ARGUMENT aten::add: argument 'other' is missing"`,
    );
  });
});
