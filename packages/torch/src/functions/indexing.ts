/**
 * @file Indexing as in PyTorch: whole numbers select, ranges slice, `null` adds a dimension, `'...'` stands for the
 * dimensions between, boolean and integer tensors pick elements.
 */

import { show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { FloatScalar } from '../base/float-scalar.ts';
import { bindOp, callBound, expected } from '../op/bind.ts';
import { bool, int64, uint8 } from '../tensor/dtype.ts';
import { type Scalar, Tensor } from '../tensor/tensor.ts';
import { tensor as makeTensor } from './creation.ts';

/** A range of positions: from `start` up to but not including `end`, every `step`-th. */
export class Range {
  readonly start: number | null;
  readonly end: number | null;
  readonly step: number;

  constructor(start: number | null, end: number | null, step: number) {
    if (!Number.isInteger(step) || step < 1) {
      throw new TorchError(
        'INDEX',
        `a range's step must be a whole number of at least 1, got ${show(step)}; use flip() to go backwards`,
      );
    }
    for (const bound of [start, end])
      if (bound !== null && !Number.isInteger(bound))
        throw new TorchError('INDEX', `a range's bounds must be whole numbers, got ${show(bound)}`);
    this.start = start;
    this.end = end;
    this.step = step;
  }

  toString(): string {
    return `${this.start ?? ''}:${this.end ?? ''}${this.step === 1 ? '' : `:${this.step}`}`;
  }
}

/** The positions from `start` to `end` (not included), every `step`-th. @example x.at(range(1, 3), range(null, null, 2)) */
export function range(start: number | null = null, end: number | null = null, step = 1): Range {
  return new Range(start, end, step);
}

/**
 * One place of an index: a number, a range (as `range(1, 3)` or `'1:3'`, `':'`, `'::2'`), `null` for a new dimension, `'...'`,
 * a boolean, a tensor of positions or a boolean mask, or an array of numbers or booleans meaning such a tensor.
 */
export type Index = number | Range | null | boolean | Tensor | readonly number[] | readonly boolean[] | string;

/** For `slice`: an array is a range `[start, end, step?]`. */
export type SliceItem = readonly (number | null)[] | Exclude<Index, readonly number[] | readonly boolean[]>;

type Item = number | Range | null | boolean | Tensor;

/** A view by the plain parts of an index, and what is left: tensors by dimension. */
interface Located {
  readonly view: Tensor;
  readonly picks: (Tensor | null)[] | null;
}

const select = bindOp('aten::select.int');
const slice = bindOp('aten::slice.Tensor');
const unsqueeze = bindOp('aten::unsqueeze');
const index = bindOp('aten::index.Tensor');
const indexPut = bindOp('aten::index_put_');
const notEqual = bindOp('aten::ne.Scalar');
const alias = bindOp('aten::alias');
const copy = bindOp('aten::copy_');
const fill = bindOp('aten::fill_.Scalar');
const viewOp = bindOp('aten::view');

/** The part of `source` that `items` name. */
function getAt(source: Tensor, items: readonly Index[]): Tensor {
  const { view, picks } = locate(source, items);
  if (picks !== null) return callBound(index, [view, picks]) as Tensor;
  return view === source ? (callBound(alias, [source]) as Tensor) : view;
}

/** Writes `value` into the part of `target` that `items` name. */
function putAt(target: Tensor, items: readonly Index[], value: Tensor | Scalar): void {
  const { view, picks } = locate(target, items);
  if (picks !== null) {
    const values =
      value instanceof Tensor
        ? dropLeadingOnes(value, 0)
        : makeTensor(scalarData(value), { dtype: target.dtype, device: target.device });
    callBound(indexPut, [view, picks, values]);
  } else if (value instanceof Tensor) {
    callBound(copy, [view, dropLeadingOnes(value, view.dim())]);
  } else {
    callBound(fill, [view, value]);
  }
}

function scalarData(value: Scalar): Parameters<typeof makeTensor>[0] {
  return value instanceof FloatScalar ? value.float : value;
}

/** A value may have more leading dimensions than its place, if they are of size one. */
function dropLeadingOnes(value: Tensor, dims: number): Tensor {
  const sizes = value.shape;
  let skip = 0;
  while (sizes.length - skip > dims && sizes[skip] === 1) skip++;
  return skip === 0 ? value : (callBound(viewOp, [value, sizes.slice(skip)]) as Tensor);
}

function locate(source: Tensor, given: readonly Index[]): Located {
  const items = expandEllipsis(source, given);
  let view = source;
  let dim = 0;
  let picks: (Tensor | null)[] | null = null;
  let inMasks = 0; // dimensions that masks take beyond their one place in the list
  const pick = (position: Tensor, dims = 1): void => {
    picks ??= [];
    while (picks.length < dim - inMasks) picks.push(null);
    picks.push(onDevice(position, source));
    inMasks += dims - 1;
    dim += dims;
  };
  for (const [place, item] of items.entries()) {
    if (typeof item === 'number') {
      checkPosition(view, dim, item, place);
      view = callBound(select, [view, dim, item]) as Tensor;
    } else if (item === null) {
      view = callBound(unsqueeze, [view, dim++]) as Tensor;
    } else if (item instanceof Range) {
      if (item.start !== null || item.end !== null || item.step !== 1)
        view = callBound(slice, [view, dim, item.start, item.end, item.step]) as Tensor;
      dim++;
    } else if (typeof item === 'boolean') {
      view = callBound(unsqueeze, [view, dim]) as Tensor;
      pick(makeTensor(item ? [0] : [], { dtype: int64 }));
    } else if (item.dtype === bool || item.dtype === uint8) {
      checkMask(view, dim, item);
      if (item.dim() === 0) {
        view = callBound(unsqueeze, [view, dim]) as Tensor;
        pick(makeTensor(item.itemValue() ? [0] : [], { dtype: int64 }));
      } else {
        pick(item.dtype === bool ? item : (callBound(notEqual, [item, 0]) as Tensor), item.dim());
      }
    } else if (item.isFloatingPoint() || item.isComplex()) {
      throw new TorchError(
        'INDEX',
        `a tensor used as an index must hold integers or booleans, not ${item.dtype.name}; use to(int64)`,
      );
    } else {
      pick(item);
    }
  }
  return { view, picks };
}

function onDevice(position: Tensor, source: Tensor): Tensor {
  return position.device === source.device || position.device === 'cpu'
    ? position
    : (callBound(bindOp('aten::to.device'), [position, source.device, position.dtype]) as Tensor);
}

function checkPosition(view: Tensor, dim: number, position: number, place: number): void {
  const size = view.shape[dim] ?? 0;
  if (Number.isInteger(position) && position >= -size && position < size) return;
  throw new TorchError(
    'INDEX',
    `index ${position} at place ${place} is outside dimension ${dim} of size ${size}; ${size === 0 ? 'it is empty' : `-${size} to ${size - 1} are allowed`}`,
  );
}

function checkMask(view: Tensor, dim: number, mask: Tensor): void {
  const sizes = view.shape;
  for (const [i, size] of mask.shape.entries()) {
    if (sizes[dim + i] !== size) {
      throw new TorchError(
        'INDEX',
        `the mask has shape [${mask.shape.join(', ')}], which does not fit dimensions from ${dim} of [${sizes.join(', ')}]`,
      );
    }
  }
}

/** Reads the items and puts as many whole ranges as `'...'` stands for. */
function expandEllipsis(source: Tensor, given: readonly Index[]): Item[] {
  // Array.from, not map: it reads places that hold nothing, too.
  const items = Array.from(given, (item): Item | '...' => (item === '...' ? '...' : readItem(item)));
  const dims = source.dim();
  const used = items.reduce<number>((sum, item) => sum + dimsOf(item), 0);
  if (used > dims)
    throw new TorchError('INDEX', `too many indices: the tensor has ${dims} dimensions, the index names ${used}`);
  const at = items.indexOf('...');
  if (at < 0) return items as Item[];
  if (items.indexOf('...', at + 1) >= 0) throw new TorchError('INDEX', "an index has at most one '...'");
  const whole = Array.from({ length: dims - used }, () => range());
  return [...items.slice(0, at), ...whole, ...items.slice(at + 1)] as Item[];
}

function dimsOf(item: Item | '...'): number {
  if (item === '...' || item === null || typeof item === 'boolean') return 0;
  return item instanceof Tensor && (item.dtype === bool || item.dtype === uint8) ? item.dim() : 1;
}

function readItem(item: Index): Item {
  if (item === null || typeof item === 'boolean' || item instanceof Range) return item;
  if (item instanceof Tensor) {
    // A whole number in a tensor without dimensions selects, as a number does.
    return item.dim() === 0 && item.dtype !== bool && item.dtype !== uint8 && !item.isFloatingPoint()
      ? item.item()
      : item;
  }
  if (typeof item === 'number') {
    if (Number.isInteger(item)) return item;
    throw new TorchError('INDEX', `an index must be a whole number, got ${item}`);
  }
  if (typeof item === 'string') return readRange(item);
  if (Array.isArray(item)) {
    if (item.length === 0) return makeTensor([], { dtype: int64 });
    return makeTensor(item as number[] | boolean[]);
  }
  throw expected("a number, a range, null, '...', a boolean, a tensor or an array", item);
}

function readRange(text: string): Range {
  const found = /^\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?\s*)?$/.exec(text);
  if (found === null) throw new TorchError('INDEX', `'${text}' is not a range; write '1:3', ':', '::2' or '...'`);
  const part = (value: string | undefined): number | null => (value === undefined ? null : Number(value));
  return range(part(found[1]), part(found[2]), part(found[3]) ?? 1);
}

function readSliceItem(item: SliceItem): Index {
  if (!Array.isArray(item)) return item as Index;
  if (item.length > 3)
    throw new TorchError('INDEX', `slice: a range is [start, end, step?], got ${item.length} numbers`);
  return range(item[0] ?? null, item[1] ?? null, item[2] ?? 1);
}

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** The part that the index names: `x.at(0)`, `x.at('1:3', '...', -1)`, `x.at(mask)`. A view where that is possible. */
    at(...items: Index[]): Tensor;
    /** Ranges as arrays: `x.slice([1, 3], [null, null, 2])` is `x.at('1:3', '::2')`. Always a view, unless a tensor picks. */
    slice(...items: SliceItem[]): Tensor;
    /** Writes into the part that the index names: `x.set_([0, '1:3'], 5)`. Returns this tensor. */
    set_(items: Index | readonly (Index | readonly (number | boolean)[])[], value: Tensor | Scalar): this;
  }
}

Tensor.prototype.at = function at(...items: Index[]): Tensor {
  return getAt(this, items);
};

Tensor.prototype.slice = function sliceBy(...items: SliceItem[]): Tensor {
  return getAt(this, items.map(readSliceItem));
};

Tensor.prototype.set_ = function set(this: Tensor, items: Index | readonly unknown[], value: Tensor | Scalar): Tensor {
  putAt(this, (Array.isArray(items) ? items : [items]) as Index[], value);
  return this;
} as typeof Tensor.prototype.set_;
