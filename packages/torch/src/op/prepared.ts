/**
 * @file Calls that are made many times with the same kinds of arguments: looked up, checked and encoded once. They work
 * on a file of registers that hold tensors as bare handles, so a run makes no JavaScript object per result. What an
 * executor of graphs is built on; everyone else uses the functions and methods.
 */
import { native } from '../addon/addon.ts';
import type { BoundArgument, BoundOp } from '../addon/bound-op.ts';
import {
  HOT_LIST,
  HOT_LIST_LONGEST,
  META_DEVICE_INDEX,
  META_DIMS,
  META_ITEM_SIZE,
  META_NUMEL,
  META_SIZES,
} from '../addon/generated/border.ts';
import { didYouMean, TorchError } from '../base/errors.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { bindOp, callGiven, expected, signature } from './bind.ts';
import { hotForms } from './generated/hot-forms.ts';
import { isScalarObject } from './kind.ts';
import { notingRun } from './quiet-changes.ts';

const shared = native.metaArray;
const DESCRIPTION = META_DEVICE_INDEX + 1; // dimensions, element type, device type and index

/** What a register holds: the handle of a tensor, an array of handles, or a number of a kind. */
export type RegisterKind = 'tensor' | 'tensors' | 'int' | 'float' | 'bool';

/** Where an argument comes from: a value known now, a register, or a list of those. */
export type Operand =
  | { readonly fixed: unknown }
  | { readonly register: number; readonly kind: RegisterKind }
  | { readonly list: readonly Operand[] };

/** The registers of a run. */
export type Registers = unknown[];

/** A call that is ready: `run` reads its arguments from registers and returns handles, numbers, or arrays of them. */
export interface PreparedCall {
  readonly run: (registers: Registers) => unknown;
  /** The types of the results: `Tensor`, `Tensor[]`, `int` and so on. */
  readonly returns: readonly string[];
  /** Whether the result is the first argument itself; `run` returns nothing then. */
  readonly inPlace: boolean;
  /** Whether it draws random numbers, in some mode at least. */
  readonly random: boolean;
}

/** Keeps a value for all runs and says in which register it is. `owner` has to live as long: the value is its handle. */
export type KeepConstant = (value: unknown, owner?: Tensor) => number;

/**
 * Prepares a call of an operator: positional operands in schema order, the others by name in camelCase.
 *
 * @example const call = prepareCall('aten::relu', { args: [{ register: 0, kind: 'tensor' }] }, keep)
 */
export function prepareCall(
  name: string,
  given: { readonly args: readonly Operand[]; readonly kwargs?: Readonly<Record<string, Operand>> },
  keep: KeepConstant,
): PreparedCall {
  const op = bindOp(name);
  const operands = placeOperands(op, given.args, given.kwargs ?? {});
  const run =
    op.guard === undefined ? (hotRun(op, operands, keep) ?? boxedRun(op, operands, keep)) : slowRun(op, operands, keep);
  const noting = op.quiet === undefined || op.guard !== undefined ? run : notingRun(op.quiet, operands, run);
  return { run: noting, returns: op.returns, inPlace: op.inPlace, random: op.random };
}

/** Frees the tensor of a handle. @example releaseHandle(call.run(registers) as number) */
export function releaseHandle(handle: number): void {
  native.release(handle);
}

/** Frees the tensors of the first `count` handles of an array, in one go. @example releaseHandles(batch, 3) */
export function releaseHandles(handles: Int32Array, count: number): void {
  native.releaseMany(handles, count);
}

/** Bytes of the memory that goes when this handle does; infinite where another tensor shares it. @example ownBytesOfHandle(zeros([4]).handle) // 16 */
export function ownBytesOfHandle(handle: number): number {
  if (native.storageUseCount(handle) > 1) return Number.POSITIVE_INFINITY;
  native.meta(handle);
  return shared[META_NUMEL]! * shared[META_ITEM_SIZE]!;
}

/** A second handle of the same tensor. @example Tensor.adopt(duplicateHandle(x.handle)) */
export function duplicateHandle(handle: number): number {
  return native.duplicate(handle);
}

/** The size of one dimension, by handle. @example sizeOfHandle(x.handle, -1) */
export function sizeOfHandle(handle: number, dim: number): number {
  native.meta(handle);
  const dims = shared[META_DIMS]!;
  const at = dim < 0 ? dim + dims : dim;
  if (at >= 0 && at < dims) return shared[META_SIZES + at]!;
  throw new TorchError('INDEX', `dimension ${dim} does not exist: the tensor has ${dims}`);
}

/** What a tensor is, apart from its values: for `hasDescription`. @example const last = describeHandle(x.handle) */
export function describeHandle(handle: number): Float64Array {
  native.meta(handle);
  const dims = shared[META_DIMS]!;
  const description = new Float64Array(DESCRIPTION + dims);
  for (let i = 0; i < DESCRIPTION; i++) description[i] = shared[i]!;
  for (let i = 0; i < dims; i++) description[DESCRIPTION + i] = shared[META_SIZES + i]!;
  return description;
}

/** Whether a tensor has the dimensions, the element type, the device and the sizes of another one. @example hasDescription(x.handle, last) */
export function hasDescription(handle: number, description: Float64Array): boolean {
  native.meta(handle);
  for (let i = 0; i < DESCRIPTION; i++) if (shared[i] !== description[i]) return false;
  for (let i = DESCRIPTION; i < description.length; i++)
    if (shared[META_SIZES + i - DESCRIPTION] !== description[i]) return false;
  return true;
}

/** The value of a tensor of one element, by handle. @example itemOfHandle(tensor(3).handle) // 3 */
export function itemOfHandle(handle: number): number | boolean | bigint | { re: number; im: number } {
  return native.item(handle);
}

function placeOperands(
  op: BoundOp,
  args: readonly Operand[],
  kwargs: Readonly<Record<string, Operand>>,
): (Operand | undefined)[] {
  const { fullName } = op;
  if (args.length > op.args.length)
    throw new TorchError(
      'ARGUMENT_COUNT',
      `${fullName} takes ${op.args.length} arguments (${signature(op)}), got ${args.length}`,
    );
  const placed = new Array<Operand | undefined>(op.args.length).fill(undefined);
  for (let i = 0; i < args.length; i++) placed[i] = args[i];
  for (const [key, operand] of Object.entries(kwargs)) {
    const at = op.positions.get(key);
    if (at === undefined)
      throw new TorchError(
        'UNKNOWN_OPTION',
        `${fullName}: unknown argument '${key}'${didYouMean(key, op.positions.keys())}; it takes ${signature(op)}`,
      );
    if (placed[at] !== undefined)
      throw new TorchError('ARGUMENT_COUNT', `${fullName}: argument '${key}' is given twice`);
    placed[at] = operand;
  }
  op.args.forEach((arg, i) => {
    if (placed[i] === undefined && arg.default === undefined && !arg.type.endsWith('?'))
      throw new TorchError('MISSING_ARGUMENT', `${fullName}: argument '${arg.key}' is missing`);
  });
  while (placed.length > 0 && placed.at(-1) === undefined) placed.pop();
  return placed;
}

// --- reading arguments ---------------------------------------------------------------------------------------------

/** How one argument of a call is had in a run. */
type Read = (registers: Registers) => unknown;

const isTensorType = (type: string): boolean => type === 'Tensor' || type === 'Tensor?';

/** Where the native value of an argument is: in a register as it stands, or to be made in each run. */
interface Place {
  readonly register: number;
  readonly read?: Read;
}

function place(op: BoundOp, at: number, operand: Operand | undefined, keep: KeepConstant): Place {
  const arg = op.args[at]!;
  if (operand === undefined) return { register: keep(undefined) };
  if ('fixed' in operand) {
    const { fixed } = operand;
    if (!Array.isArray(fixed)) return { register: keepFixed(op, arg, fixed, keep) };
    const items = fixed.map((value: unknown): Operand => ({ fixed: value }));
    return placeList(op, arg, items, keep);
  }
  if ('register' in operand) {
    const { register } = operand;
    const read = conversion(op, arg, operand.kind);
    return read === undefined ? { register } : { register, read: (registers) => read(registers[register]) };
  }
  return placeList(op, arg, operand.list, keep);
}

/** Keeps a fixed value as the addon takes it. A number that stands for a tensor becomes one now. */
function keepFixed(op: BoundOp, arg: BoundArgument, value: unknown, keep: KeepConstant): number {
  if (value === undefined || value === null) return keep(value);
  try {
    if (isTensorType(arg.type)) return keepTensor(value, keep);
    return keep(arg.encode(value));
  } catch (error) {
    if (!(error instanceof TorchError)) throw error;
    throw new TorchError(error.code, `${op.fullName}: argument '${arg.key}': ${error.message}`);
  }
}

/** Keeps a tensor, or a number as a tensor. */
function keepTensor(value: unknown, keep: KeepConstant): number {
  if (value instanceof Tensor) return keep(value.handle, value);
  if (!isNumber(value)) throw expected('a tensor or a number', value);
  const made = unscoped(() => Tensor.adopt(native.scalarTensor(value)));
  return keep(made.handle, made);
}

/** What makes an argument of a register's value; nothing where the value is right as it is. */
function conversion(op: BoundOp, arg: BoundArgument, kind: RegisterKind): ((value: unknown) => unknown) | undefined {
  const type = arg.type.replace(/\?$/, '');
  switch (kind) {
    case 'tensor':
      if (type === 'Tensor' || /^Tensor\??\[\d+\]$/.test(type)) return undefined;
      if (type === 'Scalar' || type === 'int' || type === 'float' || type === 'bool' || type === 'complex')
        return (value) => arg.encode(native.item(value as number));
      break;
    case 'tensors':
      if (/^Tensor\??\[\d*\]$/.test(type)) return undefined;
      break;
    case 'int':
      if (type === 'int' || type === 'Scalar' || type === 'float' || /^int\[\d+\]$/.test(type)) return undefined;
      if (type === 'Tensor') return (value) => native.scalarTensor(value);
      break;
    case 'float':
      if (type === 'float') return undefined;
      if (type === 'Scalar') return (value) => new FloatScalar(value as number);
      if (type === 'Tensor') return (value) => native.scalarTensor(new FloatScalar(value as number));
      break;
    case 'bool':
      if (type === 'bool' || type === 'Scalar') return undefined;
      if (type === 'int') return (value) => (value === true ? 1 : 0);
      if (type === 'Tensor') return (value) => native.scalarTensor(value);
      break;
  }
  throw new TorchError(
    'BAD_ARGUMENT',
    `${op.fullName}: argument '${arg.key}' is ${arg.type}, and is given ${kind === 'tensors' ? 'a list of tensors' : `a ${kind}`}`,
  );
}

function placeList(op: BoundOp, arg: BoundArgument, items: readonly Operand[], keep: KeepConstant): Place {
  const list = /^(.*)\[\d*\]\??$/.exec(arg.type);
  if (list === null)
    throw new TorchError('BAD_ARGUMENT', `${op.fullName}: argument '${arg.key}' is ${arg.type}, and is given a list`);
  const isTensors = isTensorType(list[1]!);
  if (!isTensors && items.every((item) => 'fixed' in item)) {
    const values = items.map((item) => (item as { fixed: unknown }).fixed);
    return { register: keepFixed(op, arg, values, keep) };
  }
  const element: BoundArgument = {
    ...arg,
    type: list[1]!,
    encode: (value) => (arg.encode([value]) as unknown[])[0],
  };
  const places = items.map((item): Place => {
    if ('list' in item)
      throw new TorchError('BAD_ARGUMENT', `${op.fullName}: argument '${arg.key}': lists of lists are not taken`);
    if ('fixed' in item) return { register: keepFixed(op, element, item.fixed, keep) };
    const read = conversion(op, element, item.kind);
    const { register } = item;
    return read === undefined ? { register } : { register, read: (registers) => read(registers[register]) };
  });
  const { length } = places;
  if (places.every((one) => one.read === undefined)) {
    const from = places.map((one) => one.register);
    return {
      register: -1,
      read: (registers) => {
        const values = new Array<unknown>(length);
        for (let i = 0; i < length; i++) values[i] = registers[from[i]!];
        return values;
      },
    };
  }
  return {
    register: -1,
    read: (registers) =>
      places.map(({ read, register }) => (read === undefined ? registers[register] : read(registers))),
  };
}

// --- calls -----------------------------------------------------------------------------------------------------------

type Call = (...values: unknown[]) => unknown;

/** The general way: the addon converts the values by the schema. */
function boxedRun(op: BoundOp, operands: readonly (Operand | undefined)[], keep: KeepConstant): PreparedCall['run'] {
  const places = operands.map((operand, i) => place(op, i, operand, keep));
  const call = op.native;
  if (places.every((one) => one.read === undefined))
    return spreadRun(
      call,
      places.map((one) => one.register),
    );
  // Numbers that stand for tensors are made for the call and freed after it.
  const temporary = places.flatMap(({ read }, i) => {
    const operand = operands[i];
    const isMade =
      read !== undefined && operand !== undefined && 'register' in operand && isTensorType(op.args[i]!.type);
    return isMade ? [i] : [];
  });
  const values = (registers: Registers): unknown[] =>
    places.map(({ read, register }) => (read === undefined ? registers[register] : read(registers)));
  if (temporary.length === 0) return (registers) => call(...values(registers));
  return (registers) => {
    const encoded = values(registers);
    try {
      return call(...encoded);
    } finally {
      for (const at of temporary) native.release(encoded[at] as number);
    }
  };
}

/** A call of a fixed number of registers, without an array in between. */
function spreadRun(call: Call, from: readonly number[]): PreparedCall['run'] {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = from;
  switch (from.length) {
    case 0:
      return () => call();
    case 1:
      return (r) => call(r[a]);
    case 2:
      return (r) => call(r[a], r[b]);
    case 3:
      return (r) => call(r[a], r[b], r[c]);
    case 4:
      return (r) => call(r[a], r[b], r[c], r[d]);
    case 5:
      return (r) => call(r[a], r[b], r[c], r[d], r[e]);
    case 6:
      return (r) => call(r[a], r[b], r[c], r[d], r[e], r[f]);
    default:
      return (r) => {
        const values = new Array<unknown>(from.length);
        for (let i = 0; i < from.length; i++) values[i] = r[from[i]!];
        return call(...values);
      };
  }
}

/** An operator that must be guarded: through tensors, as everybody calls it. */
function slowRun(op: BoundOp, operands: readonly (Operand | undefined)[], keep: KeepConstant): PreparedCall['run'] {
  const places = operands.map((operand, i) => place(op, i, operand, keep));
  return (registers) => {
    const made: Tensor[] = [];
    const given = places.map(({ read, register }, i) => {
      const value = read === undefined ? registers[register] : read(registers);
      if (typeof value !== 'number' || !isTensorType(op.args[i]!.type)) return value;
      const tensor = unscoped(() => Tensor.adopt(native.duplicate(value)));
      made.push(tensor);
      return tensor;
    });
    try {
      return unscoped(() => handlesOf(callGiven(op, given)));
    } finally {
      for (const tensor of made) tensor.dispose();
    }
  };
}

function handlesOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(handlesOf);
  if (!(value instanceof Tensor)) return value;
  const handle = native.duplicate(value.handle);
  value.dispose();
  return handle;
}

// --- hot operators -----------------------------------------------------------------------------------------------------

/** The unboxed way, where the operator has one and the arguments are of its simple form. */
function hotRun(
  op: BoundOp,
  operands: readonly (Operand | undefined)[],
  keep: KeepConstant,
): PreparedCall['run'] | undefined {
  const name = op.fullName.replace(/^aten::/, '');
  const hot = Object.hasOwn(hotForms, name) ? hotForms[name] : undefined;
  if (hot === undefined) return undefined;
  const form = hot.args;
  for (let i = form.length; i < operands.length; i++)
    if (!isDefault(op.args[i]!, operands[i]) && !(name === 'layer_norm' && i === 5)) return undefined; // its flag for cuDNN does nothing
  const from: number[] = [];
  let list: readonly number[] | undefined;
  for (let i = 0; i < form.length; i++) {
    const found = hotPlace(op.args[i]!, form[i]!, operands[i], keep);
    if (found === undefined) return undefined;
    if (typeof found === 'number') from.push(found);
    else {
      list = found;
      from.push(keep(found.length));
    }
  }
  const run = hot.bind(...from);
  return list === undefined ? run : listRun(run, list);
}

function listRun(run: PreparedCall['run'], list: readonly number[]): PreparedCall['run'] {
  const { length } = list;
  return (registers) => {
    for (let i = 0; i < length; i++) shared[HOT_LIST + i] = registers[list[i]!] as number;
    return run(registers);
  };
}

/** The register of an argument, the registers of a list, or nothing where the simple form does not hold. */
function hotPlace(
  arg: BoundArgument,
  letter: string,
  operand: Operand | undefined,
  keep: KeepConstant,
): number | readonly number[] | undefined {
  if (letter === 'I' || letter === 'A') return hotList(letter, operand, keep);
  const value = operand === undefined ? defaultOf(arg, letter) : 'fixed' in operand ? operand.fixed : undefined;
  if (operand !== undefined && 'list' in operand) return undefined;
  const register = operand !== undefined && 'register' in operand ? operand : undefined;
  switch (letter) {
    case 'T':
      if (register?.kind === 'tensor') return register.register;
      return isNumber(value) ? keepTensor(value, keep) : undefined;
    case 't':
      if (register?.kind === 'tensor') return register.register;
      return value === null ? keep(0) : undefined;
    case 'N':
      if (register !== undefined) return register.kind === 'int' ? register.register : undefined;
      if (value instanceof FloatScalar && !Number.isInteger(value.float)) return keep(value.float);
      return typeof value === 'number' ? keep(value) : undefined;
    case 'i':
      if (register !== undefined) return register.kind === 'int' ? register.register : undefined;
      return Number.isSafeInteger(value) ? keep(value) : undefined;
    case 'f': {
      if (register !== undefined)
        return register.kind === 'int' || register.kind === 'float' ? register.register : undefined;
      const plain = value instanceof FloatScalar ? value.float : value;
      return typeof plain === 'number' ? keep(plain) : undefined;
    }
    default:
      if (register !== undefined) return register.kind === 'bool' ? register.register : undefined;
      return typeof value === 'boolean' ? keep(value) : undefined;
  }
}

function hotList(letter: string, operand: Operand | undefined, keep: KeepConstant): readonly number[] | undefined {
  if (operand === undefined || 'register' in operand) return undefined;
  const items: readonly Operand[] =
    'list' in operand
      ? operand.list
      : Array.isArray(operand.fixed)
        ? operand.fixed.map((value: unknown) => ({ fixed: value }))
        : [];
  if (('fixed' in operand && !Array.isArray(operand.fixed)) || items.length > HOT_LIST_LONGEST) return undefined;
  const from: number[] = [];
  for (const item of items) {
    if ('register' in item && item.kind === (letter === 'I' ? 'int' : 'tensor')) from.push(item.register);
    else if (letter === 'I' && 'fixed' in item && Number.isSafeInteger(item.fixed)) from.push(keep(item.fixed));
    else return undefined;
  }
  return from;
}

function isNumber(value: unknown): boolean {
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint') return true;
  return typeof value === 'object' && value !== null && isScalarObject(value);
}

/** The default of an argument that is left out, from its text in the schema. */
function defaultOf(arg: BoundArgument, letter: string): unknown {
  const text = arg.default;
  if (text === undefined || text === '' || text === 'None') return null;
  if (letter === 'b') return text === '1' || text === 'True' || text === 'true';
  return Number(text);
}

/** Whether an operand says what the schema says anyway. */
function isDefault(arg: BoundArgument, operand: Operand | undefined): boolean {
  if (operand === undefined) return true;
  if (!('fixed' in operand)) return false;
  const { fixed } = operand;
  const text = arg.default ?? '';
  if (fixed === null) return text === '' || text === 'None';
  if (typeof fixed === 'boolean') return text === (fixed ? '1' : '0') || text.toLowerCase() === String(fixed);
  if (typeof fixed === 'number') return text !== '' && Number(text) === fixed;
  if (fixed instanceof FloatScalar) return text !== '' && Number(text) === fixed.float;
  return false;
}
