/** @file An operator of the dispatcher bound for calling: its schema, how arguments become native values, and back. */
import { type NativeArgument, type NativeOp, native } from '../addon.ts';
import { toDevice } from '../device.ts';
import { DType, type DTypeName, toDType } from '../dtype.ts';
import { didYouMean, TorchError } from '../errors.ts';
import { Generator } from '../random.ts';
import { disposedError, Tensor } from '../tensor.ts';

/** Turns a JavaScript value into what the addon takes, or throws saying what was expected. */
type Encode = (value: unknown) => unknown;

/** One argument of a bound operator. */
export interface BoundArgument extends NativeArgument {
  /** The name in camelCase, as callers write it. */
  readonly key: string;
  readonly encode: Encode;
}

/** An operator ready to be called. */
export interface BoundOp {
  /** `aten::add.Tensor` */
  readonly fullName: string;
  readonly args: readonly BoundArgument[];
  readonly returns: readonly string[];
  readonly inPlace: boolean;
  readonly native: NativeOp['call'];
  /** Position of an argument by its camelCase name. */
  readonly positions: ReadonlyMap<string, number>;
}

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
  const args = found.args.map((arg): BoundArgument => ({ ...arg, key: camelCase(arg.name), encode: encoderOf(arg.type) }));
  const op: BoundOp = {
    fullName,
    args,
    returns: found.returns,
    inPlace: found.inPlace,
    native: found.call,
    positions: new Map(args.map((arg, i) => [arg.key, i])),
  };
  bound.set(fullName, op);
  return op;
}

function lookUp(fullName: string): NativeOp {
  const [base = '', overload = ''] = fullName.split('.', 2);
  const qualified = base.includes('::') ? base : `aten::${base}`;
  const found = native.bindOp(qualified, overload);
  if (found !== undefined) return found;
  const overloads = native.overloadsOf(qualified);
  if (overloads.length > 0) {
    const list = overloads.map((name) => (name === '' ? `'${qualified}'` : `'${qualified}.${name}'`)).join(', ');
    throw new TorchError('UNKNOWN_OP', `callOp: '${fullName}' has no overload '${overload}'; there are ${list}`);
  }
  const names = new Set(native.listOps().map((op) => op.name));
  throw new TorchError('UNKNOWN_OP', `callOp: there is no operator '${fullName}'${didYouMean(qualified, names)}`);
}

/** Calls a bound operator: positional arguments in schema order, the others by name. */
export function callBound(op: BoundOp, positional: readonly unknown[], named?: Readonly<Record<string, unknown>>): unknown {
  const { args } = op;
  const values = new Array<unknown>(args.length);
  if (positional.length > args.length) {
    throw new TorchError('ARGUMENT_COUNT', `${op.fullName} takes ${args.length} arguments (${signature(op)}), got ${positional.length}`);
  }
  for (let i = 0; i < positional.length; i++) values[i] = encode(op, i, positional[i]);
  if (named !== undefined) {
    for (const [key, value] of Object.entries(named)) {
      const position = op.positions.get(key);
      if (position === undefined) {
        throw new TorchError('UNKNOWN_OPTION', `${op.fullName}: unknown argument '${key}'${didYouMean(key, op.positions.keys())}; it takes ${signature(op)}`);
      }
      if (position < positional.length) throw new TorchError('ARGUMENT_COUNT', `${op.fullName}: argument '${key}' is given twice`);
      values[position] = encode(op, position, value);
    }
  }
  const result = op.native(...values);
  if (op.inPlace) return positional.length > 0 ? positional[0] : named?.[(op.args[0] as BoundArgument).key];
  const { returns } = op;
  if (returns.length === 1) return decode(result, returns[0] as string);
  if (returns.length === 0) return undefined;
  return (result as unknown[]).map((item, i) => decode(item, returns[i] as string));
}

/** `self, other, alpha` */
export function signature(op: BoundOp): string {
  return op.args.map((arg) => arg.key + (arg.default === undefined ? '' : '?')).join(', ');
}

function encode(op: BoundOp, position: number, value: unknown): unknown {
  const arg = op.args[position] as BoundArgument;
  if (value === undefined) return undefined;
  try {
    return arg.encode(value);
  } catch (error) {
    if (error instanceof TorchError && !error.message.startsWith(op.fullName)) {
      throw new TorchError(error.code, `${op.fullName}: argument '${arg.key}': ${error.message}`);
    }
    throw error;
  }
}

/** What the addon returned, as the schema says it is. */
export function decode(value: unknown, type: string): unknown {
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
    const element = encoderOf(list[1] as string);
    const acceptsOne = list[2] !== '';
    return (value) => {
      if (Array.isArray(value)) return value.map((item) => element(item));
      if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return Array.from(value as unknown as Iterable<unknown>, (item) => element(item));
      if (acceptsOne) return element(value);
      throw expected('an array', value);
    };
  }
  return encoders[type] ?? ((value) => value);
}

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
    if (typeof value === 'object' && value !== null && 'float' in value) return value;
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

const layoutCodes: Record<string, number> = { strided: 0, sparse_coo: 1, sparse_csr: 2, mkldnn: 3, sparse_csc: 4, sparse_bsr: 5, sparse_bsc: 6, jagged: 7 };
const memoryFormatCodes: Record<string, number> = { contiguous_format: 0, preserve_format: 1, channels_last: 2, channels_last_3d: 3 };

function code(codes: Record<string, number>, what: string, value: unknown): number {
  const name = typeof value === 'string' ? value.replace(/^torch\./, '') : '';
  const snake = name.replace(/[A-Z0-9]+(?=[A-Z]|$|[a-z])/g, (part) => (/^\d/.test(part) ? part : `_${part.toLowerCase()}`));
  const found = codes[name] ?? codes[snake];
  if (found === undefined) throw expected(`${what} (${Object.keys(codes).join(', ')})`, value);
  return found;
}

function encodeTensor(value: unknown): unknown {
  if (value instanceof Tensor) {
    if (value.h === 0) throw disposedError();
    return value.h;
  }
  if (value === null) return null;
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint' || isScalarObject(value)) {
    return Tensor.adopt(native.scalarTensor(value)).h; // freed with the innermost scope
  }
  throw expected('a tensor', value);
}

function isScalarObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && ('float' in value || ('re' in value && 'im' in value));
}

function encodeScalar(value: unknown): unknown {
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint' || isScalarObject(value)) return value;
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
    if ('h' in value && 'owner' in value) return 'a copy of a tensor (tensors do not survive postMessage: send them through a process group or channel)';
    return `an object of type ${(value as object).constructor?.name ?? 'Object'}`;
  }
  return `a ${typeof value}`;
}
