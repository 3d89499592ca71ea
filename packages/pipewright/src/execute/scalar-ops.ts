/** @file Arithmetic on the numbers of a graph (sizes, mostly), with the rules of Python: `scalar::floordiv` and so on. */
import type { RegisterKind } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';

/** A number in a graph. */
export type ScalarValue = number | bigint | boolean;

/** An operator on numbers. */
export interface ScalarOp {
  readonly arity: number;
  /** The kind of the result, by the kinds of the arguments. */
  readonly kind: (kinds: readonly RegisterKind[]) => RegisterKind;
  readonly run: (...values: never[]) => unknown;
}

const isFloat = (kinds: readonly RegisterKind[]): RegisterKind => (kinds.includes('float') ? 'float' : 'int');
const bool = (): RegisterKind => 'bool';
const int = (): RegisterKind => 'int';
const float = (): RegisterKind => 'float';

const arithmetic = (run: (a: number, b: number) => number): ScalarOp => ({ arity: 2, kind: isFloat, run });
const comparison = (run: (a: ScalarValue, b: ScalarValue) => boolean): ScalarOp => ({ arity: 2, kind: bool, run });

function floorDiv(a: number, b: number): number {
  if (b === 0) throw new PipelineError('SCALAR', `scalar::floordiv: ${a} divided by zero`);
  return Math.floor(a / b);
}

function mod(a: number, b: number): number {
  if (b === 0) throw new PipelineError('SCALAR', `scalar::mod: ${a} modulo zero`);
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest + 0;
}

/** Bits of integers, logic of booleans. */
const bitwise = (
  ints: (a: bigint, b: bigint) => bigint,
  logic: ((a: boolean, b: boolean) => boolean) | null,
): ScalarOp => ({
  arity: 2,
  kind: (kinds) => (logic !== null && kinds.every((kind) => kind === 'bool') ? 'bool' : 'int'),
  run: (a: ScalarValue, b: ScalarValue) =>
    logic !== null && typeof a === 'boolean' && typeof b === 'boolean'
      ? logic(a, b)
      : Number(ints(BigInt(a), BigInt(b))),
});

const table: Readonly<Record<string, ScalarOp>> = {
  add: arithmetic((a, b) => a + b),
  sub: arithmetic((a, b) => a - b),
  mul: arithmetic((a, b) => a * b),
  floordiv: arithmetic(floorDiv),
  mod: arithmetic(mod),
  pow: arithmetic((a, b) => a ** b),
  truediv: {
    arity: 2,
    kind: float,
    run: (a: number, b: number) => {
      if (b === 0) throw new PipelineError('SCALAR', `scalar::truediv: ${a} divided by zero`);
      return a / b;
    },
  },
  neg: { arity: 1, kind: isFloat, run: (a: number) => 0 - a },
  pos: { arity: 1, kind: isFloat, run: (a: number) => a },
  eq: comparison((a, b) => Number(a) === Number(b)),
  ne: comparison((a, b) => Number(a) !== Number(b)),
  lt: comparison((a, b) => a < b),
  le: comparison((a, b) => a <= b),
  gt: comparison((a, b) => a > b),
  ge: comparison((a, b) => a >= b),
  and: bitwise(
    (a, b) => a & b,
    (a, b) => a && b,
  ),
  or: bitwise(
    (a, b) => a | b,
    (a, b) => a || b,
  ),
  xor: bitwise(
    (a, b) => a ^ b,
    (a, b) => a !== b,
  ),
  lshift: bitwise((a, b) => a << b, null),
  rshift: bitwise((a, b) => a >> b, null),
  not: { arity: 1, kind: bool, run: (a: ScalarValue) => !a },
  trunc: { arity: 1, kind: int, run: (a: ScalarValue) => Math.trunc(Number(a)) + 0 },
  floor: { arity: 1, kind: int, run: (a: number) => Math.floor(a) },
  ceil: { arity: 1, kind: int, run: (a: number) => Math.ceil(a) + 0 },
  int: { arity: 1, kind: int, run: (a: ScalarValue) => Math.trunc(Number(a)) + 0 },
  float: { arity: 1, kind: float, run: (a: ScalarValue) => Number(a) },
  max: arithmetic((a, b) => Math.max(a, b)),
  min: arithmetic((a, b) => Math.min(a, b)),
  sqrt: { arity: 1, kind: float, run: (a: number) => Math.sqrt(a) },
  ite: {
    arity: 3,
    kind: (kinds) => isFloat(kinds.slice(1)),
    run: (test: boolean, then: ScalarValue, otherwise: ScalarValue) => (test ? then : otherwise),
  },
};

/** The names of all operators on numbers, without `scalar::`. */
export const scalarOpNames: readonly string[] = Object.keys(table);

/** The operator on numbers of that name (`scalar::add`), or nothing. */
export function scalarOp(name: string): ScalarOp | undefined {
  const short = name.startsWith('scalar::') ? name.slice(8) : '';
  return Object.hasOwn(table, short) ? table[short] : undefined;
}

/** Runs an operator on numbers; an integer that a number cannot hold is an error. */
export function runScalarOp(name: string, op: ScalarOp, kind: RegisterKind, values: readonly unknown[]): unknown {
  const plain = values.map((value) => (typeof value === 'bigint' ? Number(value) : value));
  const result = (op.run as (...given: unknown[]) => unknown)(...plain);
  if (kind === 'int' && !Number.isSafeInteger(result))
    throw new PipelineError(
      'SCALAR',
      `${name}(${plain.join(', ')}) is ${String(result)}, which is not an exact integer`,
    );
  return result;
}
