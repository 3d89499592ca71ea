/** @file An operator of the dispatcher bound for calling: its schema, how arguments become native values, and back. */

import { types } from 'node:util';
import { type NativeOp, native } from '../addon/addon.ts';
import type { BoundArgument, BoundOp, Encode } from '../addon/bound-op.ts';
import { checkText } from '../base/checks.ts';
import { didYouMean, TorchError } from '../base/errors.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { toDevice } from '../tensor/device.ts';
import { DType, type DTypeName, dtypeOfCode, toDType } from '../tensor/dtype.ts';
import { Generator } from '../tensor/random.ts';
import { recorder } from '../tensor/recorder.ts';
import { disposedError, Tensor } from '../tensor/tensor.ts';
import { noteGiven, quietArguments } from './quiet-changes.ts';

const bound = new Map<string, BoundOp>();

/** `batch_first` becomes `batchFirst`; names that begin with an underscore keep it. */
export function camelCase(name: string): string {
  return name.replace(/(?<=[a-z0-9A-Z])_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** The operator `aten::name.overload`, looked up once. */
export function bindOp(fullName: string): BoundOp {
  const known = bound.get(fullName);
  if (known !== undefined) return known;
  const found = lookUp(fullName);
  const args = found.args.map(
    (arg): BoundArgument => ({ ...arg, key: camelCase(arg.name), encode: encoderOf(arg.type) }),
  );
  const op: BoundOp = {
    fullName,
    args,
    returns: found.returns,
    inPlace: found.inPlace,
    random: found.random,
    outs: outsOf(found),
    native: found.call,
    quiet: quietArguments(fullName, args),
    guard: guards[fullName.split('.')[0]!.replace(/^aten::_?/, '')],
    positions: new Map(args.map((arg, i) => [arg.key, i])),
  };
  bound.set(fullName, op);
  return op;
}

/** An operator that writes into `out` returns those very tensors. */
function outsOf(op: NativeOp): number[] {
  const outs = op.args.flatMap((arg, i) => (arg.written && arg.keywordOnly && arg.type === 'Tensor' ? [i] : []));
  return outs.length === op.returns.length ? outs : [];
}

function lookUp(fullName: string): NativeOp {
  checkText('callOp', 'the name of the operator', fullName);
  const [base = '', overload = ''] = fullName.split('.', 2);
  const qualified = base.includes('::') ? base : `aten::${base}`;
  const found = native.bindOp(qualified, overload);
  if (found !== undefined) return found;
  const overloads = native.overloadsOf(qualified).sort();
  if (overloads.length > 0) {
    const list = overloads.map((name) => (name === '' ? `'${qualified}'` : `'${qualified}.${name}'`)).join(', ');
    throw new TorchError(
      'UNKNOWN_OP',
      `callOp: libtorch ${native.torchVersion()} has no overload '${overload}' of '${qualified}'; there are ${list}`,
    );
  }
  const names = new Set(native.listOps().map((op) => op.name));
  throw new TorchError(
    'UNKNOWN_OP',
    `callOp: libtorch ${native.torchVersion()} has no operator '${fullName}'${didYouMean(qualified, names)}`,
  );
}

/** Calls a bound operator: positional arguments in schema order, the others by name. */
export function callBound(
  op: BoundOp,
  positional: readonly unknown[],
  named?: Readonly<Record<string, unknown>>,
): unknown {
  const { args, fullName } = op;
  if (positional.length > args.length) {
    throw new TorchError(
      'ARGUMENT_COUNT',
      `${fullName} takes ${args.length} arguments (${signature(op)}), got ${positional.length}`,
    );
  }
  const given = new Array<unknown>(args.length);
  for (let i = 0; i < positional.length; i++) given[i] = positional[i];
  if (named !== undefined) {
    for (const key of Object.keys(named)) given[namedPosition(op, key, positional.length)] = named[key];
  }
  return callGiven(op, given);
}

/** Public operators that crash in libtorch, in Python too, where an error is due. */
const guards: Readonly<Record<string, (given: readonly unknown[]) => void>> = { linalg_eigvals: refuseNonFinite };

/** LAPACK reads beyond its memory when the matrix is not finite. */
function refuseNonFinite([matrix]: readonly unknown[]): void {
  if (!(matrix instanceof Tensor) || matrix.isDisposed || matrix.isMeta) return;
  const finite = callBound(bindOp('aten::isfinite'), [matrix]) as Tensor;
  const all = callBound(bindOp('aten::all'), [finite]) as Tensor;
  const fine = all.itemValue();
  finite.dispose();
  all.dispose();
  if (fine !== true)
    throw new TorchError('NOT_FINITE', 'linalgEigvals: the matrix has infinite or NaN elements; remove them first');
}

/** Calls a bound operator with its arguments in schema order; `undefined` stands for the default. */
export function callGiven(op: BoundOp, given: readonly unknown[]): unknown {
  if (recorder !== null) return recorder.operator(op, given);
  if (op.guard !== undefined) op.guard(given);
  if (op.quiet !== undefined) noteGiven(op.quiet, given);
  const values = encodeAll(op, given);
  const result = temporaries.length === 0 ? op.native(...values) : callWithTemporaries(op, values);
  if (op.inPlace) return given[0];
  const { returns } = op;
  const decoded =
    returns.length > 1 ? (result as unknown[]).map((item, i) => decode(item, returns[i]!)) : decode(result, returns[0]);
  return op.outs.length > 0 ? givenOuts(op, decoded, given) : decoded;
}

/** Handles of numbers that stand for tensors, made while the arguments of a call are encoded. */
let temporaries: number[] = [];

function callWithTemporaries(op: BoundOp, values: unknown[]): unknown {
  const mine = temporaries;
  temporaries = [];
  try {
    return op.native(...values);
  } finally {
    for (const handle of mine) native.release(handle);
  }
}

/** The tensors given as `out`, instead of new handles of them. */
function givenOuts(op: BoundOp, decoded: unknown, given: readonly unknown[]): unknown {
  const results = Array.isArray(decoded) ? (decoded as unknown[]) : [decoded];
  const outs = op.outs.map((at, i) => {
    const out = given[at];
    if (!(out instanceof Tensor)) return results[i];
    (results[i] as Tensor).dispose();
    return out;
  });
  return outs.length === 1 ? outs[0] : outs;
}

/** `self, other, alpha` */
export function signature(op: BoundOp): string {
  return op.args.map((arg) => arg.key + (arg.default === undefined ? '' : '?')).join(', ');
}

/** The native value of every argument. */
function encodeAll(op: BoundOp, given: readonly unknown[]): unknown[] {
  const { args } = op;
  const values = new Array<unknown>(given.length);
  let at = 0;
  try {
    for (; at < given.length; at++) {
      const value = given[at];
      values[at] = value === undefined ? undefined : args[at]!.encode(value);
    }
    return values;
  } catch (error) {
    for (const handle of temporaries.splice(0)) native.release(handle);
    if (!(error instanceof TorchError) || error.message.startsWith(op.fullName)) throw error;
    throw new TorchError(error.code, `${op.fullName}: argument '${args[at]!.key}': ${error.message}`);
  }
}

function namedPosition(op: BoundOp, key: string, numPositional: number): number {
  const position = op.positions.get(key);
  if (position === undefined) {
    throw new TorchError(
      'UNKNOWN_OPTION',
      `${op.fullName}: unknown argument '${key}'${didYouMean(key, op.positions.keys())}; it takes ${signature(op)}`,
    );
  }
  if (position < numPositional)
    throw new TorchError('ARGUMENT_COUNT', `${op.fullName}: argument '${key}' is given twice`);
  return position;
}

/** What the addon returned, as the schema says it is. */
export function decode(value: unknown, type: string | undefined): unknown {
  if (type === undefined) return undefined;
  if (type === 'Tensor') return typeof value === 'number' ? Tensor.adopt(value) : value;
  if (type === 'ScalarType') return typeof value === 'number' ? dtypeOfCode(value) : value;
  if (type.startsWith('Tensor')) {
    if (typeof value === 'number') return Tensor.adopt(value);
    if (Array.isArray(value)) return value.map((item: number | null) => (item === null ? null : Tensor.adopt(item)));
  }
  return value;
}

function encoderOf(type: string): Encode {
  if (type.endsWith('?')) {
    const inner = encoderOf(type.slice(0, -1));
    return (value) => (value === null ? null : inner(value));
  }
  const list = /^(.*)\[(\d*)\]$/.exec(type);
  if (list !== null) {
    const element = encoderOf(list[1]!);
    const acceptsOne = list[2] !== '';
    return (value) => {
      if (Array.isArray(value) || types.isTypedArray(value)) {
        const items = value as unknown as ArrayLike<unknown>;
        if (items.length > longestList) throw expected(`at most ${longestList} elements`, value);
        return Array.from(items, (item) => element(item));
      }
      if (acceptsOne) return element(value);
      throw expected('an array', value);
    };
  }
  return encoders[type] ?? ((value) => value);
}

const longestList = 1 << 22;

const encoders: Record<string, Encode> = {
  Tensor: encodeTensor,
  int: (value) => {
    if (typeof value === 'number' && Number.isInteger(value)) return value;
    if (typeof value === 'bigint') return value;
    if (typeof value === 'boolean') return value ? 1 : 0;
    throw expected('an integer', value);
  },
  float: (value) => {
    if (typeof value === 'number') return value;
    if (typeof value === 'bigint') return Number(value);
    if (value instanceof FloatScalar) return value.float;
    throw expected('a number', value);
  },
  bool: (value) => {
    if (typeof value === 'boolean') return value;
    throw expected('true or false', value);
  },
  str: (value) => {
    if (typeof value === 'string') return value;
    throw expected('a string', value);
  },
  Scalar: encodeScalar,
  complex: encodeScalar,
  ScalarType: (value) => {
    if (value instanceof DType || typeof value === 'string') return toDType(value as DType | DTypeName).code;
    throw expected("an element type such as float32 or 'float32'", value);
  },
  Device: toDevice,
  Layout: (value) => code(layoutCodes, 'a layout', value),
  MemoryFormat: (value) => code(memoryFormatCodes, 'a memory format', value),
  Generator: (value) => {
    if (value instanceof Generator) return value.handle;
    throw expected('a Generator', value);
  },
};

const layoutCodes: Record<string, number> = {
  strided: 0,
  sparse_coo: 1,
  sparse_csr: 2,
  mkldnn: 3,
  sparse_csc: 4,
  sparse_bsr: 5,
  sparse_bsc: 6,
  jagged: 7,
};
const memoryFormatCodes: Record<string, number> = {
  contiguous_format: 0,
  preserve_format: 1,
  channels_last: 2,
  channels_last_3d: 3,
};

function code(codes: Record<string, number>, what: string, value: unknown): number {
  const name = typeof value === 'string' ? value.replace(/^torch\./, '') : '';
  const snake = name.replace(/[A-Z0-9]+(?=[A-Z]|$|[a-z])/g, (part) =>
    /^\d/.test(part) ? part : `_${part.toLowerCase()}`,
  );
  const found = codes[name] ?? codes[snake];
  if (found === undefined) throw expected(`${what} (${Object.keys(codes).join(', ')})`, value);
  return found;
}

function encodeTensor(value: unknown): unknown {
  if (value instanceof Tensor) {
    if (value.h === 0) throw disposedError();
    return value.h;
  }
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint' || isScalarObject(value)) {
    const handle = native.scalarTensor(value);
    temporaries.push(handle); // freed after the call
    return handle;
  }
  throw expected('a tensor', value);
}

function isScalarObject(value: unknown): boolean {
  return (
    typeof value === 'object' && value !== null && (value instanceof FloatScalar || ('re' in value && 'im' in value))
  );
}

function encodeScalar(value: unknown): unknown {
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint' || isScalarObject(value))
    return value;
  if (value instanceof Tensor) return value.itemValue();
  throw expected('a number', value);
}

/** The error of a value of the wrong kind. */
export function expected(what: string, value: unknown): TorchError {
  return new TorchError('BAD_ARGUMENT', `expected ${what}, got ${describe(value)}`);
}

function describe(value: unknown): string {
  if (value === null) return 'null';
  if (typeof value === 'string') return `'${value.slice(0, 40)}'`;
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint') return String(value);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (value instanceof Tensor) return 'a tensor';
  if (typeof value === 'object') {
    if ('h' in value && 'owner' in value)
      return 'a copy of a tensor (tensors do not survive postMessage: send them through a process group or channel)';
    return `an object of type ${(value as object).constructor?.name ?? 'Object'}`;
  }
  return `a ${typeof value}`;
}
