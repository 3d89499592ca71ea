/** @file Bad input to operators: an error that says what to do, never a crash and never something else. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import * as torch from '../index.ts';

const { callOp, liveTensors, ones, scope, TorchError, zeros } = torch;

/** The error a call ends with: its code and message. */
function failure(body: () => unknown): { code: string; message: string } {
  try {
    scope(() => {
      body();
    });
  } catch (error) {
    if (!(error instanceof TorchError)) throw error;
    return { code: error.code, message: error.message };
  }
  throw new Error('no error');
}

const x = ones(2, 3);
const gone = ones(2);
gone.dispose();
const cyclic: unknown[] = [];
cyclic.push(cyclic);

describe('bad input', () => {
  const cases: [string, () => unknown, RegExp][] = [
    ['NaN as a size', () => zeros(Number.NaN), /NO_OVERLOAD zeros: /],
    ['infinite size', () => zeros([Infinity]), /NO_OVERLOAD zeros: /],
    ['fractional size', () => zeros(1.5), /NO_OVERLOAD zeros: /],
    ['negative size', () => zeros(-2), /LIBTORCH aten::zeros: /],
    ['size beyond memory', () => zeros(2 ** 50), /OUT_OF_MEMORY aten::zeros: /],
    ['product of sizes beyond 64 bits', () => zeros(2 ** 40, 2 ** 40), /LIBTORCH aten::zeros: /],
    [
      'BigInt beyond 64 bits',
      () => callOp('aten::zeros', [[2n ** 70n]]),
      /BAD_ARGUMENT aten::zeros: argument 'size': .*BigInt/,
    ],
    [
      'long list',
      () => callOp('aten::permute', [x, new Array(5_000_000)]),
      /BAD_ARGUMENT aten::permute: argument 'dims': .*at most/,
    ],
    [
      'holes in a list',
      () => callOp('aten::permute', [x, new Array(2)]),
      /BAD_ARGUMENT aten::permute: argument 'dims': expected an integer/,
    ],
    [
      'cyclic list',
      () => callOp('aten::permute', [x, cyclic]),
      /BAD_ARGUMENT aten::permute: argument 'dims': expected an integer, got an array/,
    ],
    ['disposed tensor', () => callOp('aten::add.Tensor', [x, gone]), /DISPOSED aten::add.Tensor: argument 'other'/],
    ['disposed tensor in a list', () => torch.cat([x, gone]), /DISPOSED .*disposed of/],
    [
      'a copy of a tensor',
      () => callOp('aten::exp', [{ ...x }]),
      /BAD_ARGUMENT aten::exp: argument 'self': .*copy of a tensor/,
    ],
    [
      'null for a tensor',
      () => callOp('aten::exp', [null]),
      /BAD_ARGUMENT aten::exp: argument 'self': expected a tensor, got null/,
    ],
    ['null in a list of tensors', () => callOp('aten::cat', [[x, null]]), /BAD_ARGUMENT aten::cat: argument 'tensors'/],
    [
      'string for a number',
      () => callOp('aten::add.Scalar', [x, '1']),
      /BAD_ARGUMENT aten::add.Scalar: argument 'other': expected a number, got '1'/,
    ],
    [
      'number for a boolean',
      () => callOp('aten::sort', [x, 0, 1]),
      /BAD_ARGUMENT aten::sort: argument 'descending': expected true or false, got 1/,
    ],
    ['unknown dtype', () => zeros([1], { dtype: 'flot32' as never }), /'flot32'|no overload/],
    ['unknown device', () => x.to('gpu'), /LIBTORCH aten::to: /],
    ['dtype of the wrong kind', () => x.to('int64').requiresGrad_(), /DTYPE /],
    ['too many arguments', () => callOp('aten::exp', [x, x]), /ARGUMENT_COUNT aten::exp takes 1 arguments/],
    ['too few arguments', () => callOp('aten::mm', [x]), /MISSING_ARGUMENT aten::mm: argument 'mat2' is missing/],
    [
      'argument given twice',
      () => callOp('aten::mm', [x, x], { mat2: x }),
      /ARGUMENT_COUNT aten::mm: argument 'mat2' is given twice/,
    ],
    [
      'arguments that are no array',
      () => callOp('aten::mm', x as never),
      /BAD_ARGUMENT callOp: the arguments of aten::mm must be an array/,
    ],
    [
      'options that are no object',
      () => callOp('aten::mm', [x, x], 3 as never),
      /BAD_ARGUMENT callOp: keyword arguments/,
    ],
    ['a name that is no string', () => callOp(7 as never, []), /BAD_ARGUMENT callOp: the operator's name/],
    ['shapes that do not fit', () => x.add(ones(5)), /LIBTORCH add: The size of tensor a/],
    ['dimension out of range', () => x.sum(7), /INDEX sum: Dimension out of range/],
    ['index out of range', () => x.select(0, 9), /INDEX select: /],
    [
      'a matrix that is not finite',
      () => torch.linalg.eigvals(torch.full([3, 3], Number.NaN)),
      /NOT_FINITE linalgEigvals/,
    ],
    [
      'a type that TypeScript cannot give',
      () => callOp('aten::record_stream', [x, {}]),
      /UNSUPPORTED_TYPE aten::record_stream/,
    ],
  ];
  test.each(cases)('%s', (_, body, expected) => {
    const { code, message } = failure(body);
    expect(`${code} ${message}`).toMatch(expected);
  });

  test('getters that throw pass their error on', () => {
    const options = {
      get alpha() {
        throw new RangeError('mine');
      },
    };
    expect(() => callOp('aten::add.Tensor', [x, x], options)).toThrow(new RangeError('mine'));
  });

  test('a full stack is a RangeError', () => {
    const dive = (depth: number): number => {
      x.add(1).dispose();
      return dive(depth + 1) + 1;
    };
    expect(() => dive(0)).toThrow(RangeError);
    expect(() => scope(() => dive(0))).toThrow(RangeError);
    expect(x.add(1).dispose()).toBeUndefined();
  });

  test('errors leave no handle behind', () => {
    const before = liveTensors();
    for (const [, body] of cases) expect(() => scope(() => void body())).toThrow();
    expect(() => callOp('aten::add.Tensor', [1, 2], { alhpa: 1 })).toThrow();
    expect(() => callOp('aten::add.Tensor', [1, 'x'])).toThrow();
    expect(liveTensors()).toBe(before);
  });
});

test('500 random calls over all operators crash nothing that libtorch does not crash itself', () => {
  const script = fileURLToPath(new URL('../../../../tests/fuzz/ops.mjs', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, '--calls', '500', '--seed', '11'], {
    encoding: 'utf8',
    timeout: 500_000,
  });
  expect(status, stdout + stderr).toBe(0);
  expect(stdout).toContain('500 calls');
  expect(stdout).not.toContain('unexpected');
});
