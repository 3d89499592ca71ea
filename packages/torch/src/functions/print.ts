/** @file Tensors as text, the way PyTorch prints them. */

import { native } from '../addon/addon.ts';
import { checkObject, show } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { bindOp, callBound } from '../op/bind.ts';
import { bool, complex64, complex128, float64, getDefaultDtype, int64 } from '../tensor/dtype.ts';
import { withRecorder } from '../tensor/recorder.ts';
import { Scope } from '../tensor/scope.ts';
import { type Complex, type Element, type NestedArray, Tensor } from '../tensor/tensor.ts';

/** How tensors are printed. */
export interface PrintOptions {
  /** Digits after the point. */
  precision?: number;
  /** From this many elements on the middle is left out. */
  threshold?: number;
  /** How many elements are shown at each end then. */
  edgeItems?: number;
  /** Characters in a line. */
  lineWidth?: number;
  /** Scientific notation: always, never, or by PyTorch's rule. */
  sciMode?: boolean | null;
}

const settings = { precision: 4, threshold: 1000, edgeItems: 3, lineWidth: 80, sciMode: null as boolean | null };

/** Changes how tensors are printed. @example setPrintOptions({ precision: 2 }) */
export function setPrintOptions(options: PrintOptions): void {
  checkObject('setPrintOptions', 'the argument', options, 'options');
  checkOptions('setPrintOptions', options, ['precision', 'threshold', 'edgeItems', 'lineWidth', 'sciMode']);
  for (const key of ['precision', 'threshold', 'edgeItems', 'lineWidth'] as const) {
    const value = options[key];
    if (value === undefined) continue;
    if (!Number.isInteger(value) || value < 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `setPrintOptions: ${key} must be a whole number of at least 0, got ${show(value)}`,
      );
    settings[key] = value;
  }
  if (options.sciMode !== undefined) settings.sciMode = options.sciMode;
}

/** How elements are written, and how wide a column is for those that are neither zero, infinite nor NaN. */
interface Format {
  text(value: Element): string;
  readonly width: number;
}

/** `tensor([1., 2.])` with type, device and gradient where they are not the usual ones. */
function formatTensor(source: Tensor): string {
  const scope = new Scope();
  const before = native.setGradEnabled(false);
  try {
    return withRecorder(null, () => describe(source));
  } finally {
    native.setGradEnabled(before);
    scope.close();
  }
}

function describe(source: Tensor): string {
  const suffixes: string[] = [];
  const shape = source.shape;
  const numel = source.numel();
  const dtype = source.dtype;
  if (source.device !== 'cpu') suffixes.push(`device='${source.device}'`);
  const usual =
    dtype === getDefaultDtype() ||
    dtype === int64 ||
    dtype === bool ||
    (dtype.isComplex && dtype === (getDefaultDtype() === float64 ? complex128 : complex64));
  let body: string;
  const prefix = 'tensor(';
  if (source.isMeta) {
    suffixes.push(`size=(${shapeText(shape)})`);
    if (dtype !== getDefaultDtype()) suffixes.push(`dtype=${dtype}`);
    body = '...';
  } else if (source.layout !== 'strided') {
    suffixes.push(`size=(${shapeText(shape)})`, `layout=${source.layout}`);
    body = '...';
  } else if (numel === 0) {
    if (shape.length !== 1) suffixes.push(`size=(${shapeText(shape)})`);
    if (dtype !== getDefaultDtype()) suffixes.push(`dtype=${dtype}`);
    body = '[]';
  } else {
    if (!usual) suffixes.push(`dtype=${dtype}`);
    body = bodyOf(source, prefix.length);
  }
  const made = nodeName(source);
  if (made !== '') suffixes.push(`grad_fn=<${made}>`);
  else if (source.requiresGrad) suffixes.push('requires_grad=True');
  return joinSuffixes(prefix + body, suffixes, prefix.length);
}

/** The node that made a tensor; '' for a leaf, `Invalid` for a view whose base was changed in a way that leaves it without one. */
function nodeName(source: Tensor): string {
  try {
    if (source.isLeaf) return '';
  } catch {
    return 'Invalid';
  }
  const node = native.gradFn(source.handle);
  const name = native.nodeName(node);
  native.releaseNode(node);
  return name;
}

function joinSuffixes(start: string, suffixes: readonly string[], indent: number): string {
  let text = start;
  let lineLength = text.length - text.lastIndexOf('\n') + 1; // PyTorch counts two more
  for (const suffix of suffixes) {
    text += ',';
    lineLength += 1;
    if (lineLength + suffix.length + 1 > settings.lineWidth) {
      text += `\n${' '.repeat(indent)}${suffix}`;
      lineLength = indent + suffix.length;
    } else {
      text += ` ${suffix}`;
      lineLength += suffix.length + 1;
    }
  }
  return `${text})`;
}

function shapeText(shape: readonly number[]): string {
  return shape.length === 1 ? `${shape[0]},` : shape.join(', ');
}

function bodyOf(source: Tensor, indent: number): string {
  const shorten = source.numel() > settings.threshold;
  const shown = shorten ? withoutMiddle(source) : source;
  const values = shown.toArray();
  const flat = [values].flat(Infinity as 1) as Element[];
  const format = source.dtype.isComplex
    ? complexFormat(flat as Complex[])
    : realFormat(flat, source.dtype.isFloatingPoint);
  return lay(values, source.shape, indent, { shorten, format });
}

/** The ends of every dimension that is too long, joined. */
function withoutMiddle(source: Tensor): Tensor {
  const edge = settings.edgeItems;
  let result = source;
  for (const [dim, size] of source.shape.entries()) {
    if (size <= 2 * edge) continue;
    const head = callBound(bindOp('aten::slice.Tensor'), [result, dim, 0, edge]) as Tensor;
    const tail = callBound(bindOp('aten::slice.Tensor'), [result, dim, size - edge]) as Tensor;
    result = callBound(bindOp('aten::cat'), [[head, tail], dim]) as Tensor;
  }
  return result;
}

interface Layout {
  readonly shorten: boolean;
  readonly format: Format;
}

function lay(values: NestedArray, shape: readonly number[], indent: number, layout: Layout): string {
  if (!Array.isArray(values)) return layout.format.text(values as Element);
  const items = values as readonly NestedArray[];
  const cut = layout.shorten && shape[0]! > 2 * settings.edgeItems;
  if (shape.length === 1) return layRow(items as readonly Element[], indent, { ...layout, shorten: cut });
  const rows = items.map((item) => lay(item, shape.slice(1), indent + 1, layout));
  if (cut) rows.splice(settings.edgeItems, 0, '...');
  return `[${rows.join(`,${'\n'.repeat(shape.length - 1)}${' '.repeat(indent + 1)}`)}]`;
}

function layRow(items: readonly Element[], indent: number, layout: Layout): string {
  const { format } = layout;
  const cells = items.map((item) => format.text(item));
  if (layout.shorten) cells.splice(settings.edgeItems, 0, ' ...');
  const perLine = Math.max(1, Math.floor((settings.lineWidth - indent) / (format.width + 2)));
  const lines: string[] = [];
  for (let i = 0; i < cells.length; i += perLine) lines.push(cells.slice(i, i + perLine).join(', '));
  return `[${lines.join(`,\n${' '.repeat(indent + 1)}`)}]`;
}

function realFormat(values: readonly Element[], floating: boolean): Format {
  if (!floating) {
    const texts = values.map(plainText);
    const width = Math.max(1, ...texts.map((text) => text.length));
    return { text: (value) => plainText(value).padStart(width), width };
  }
  const text = floatText(values as readonly number[]);
  const finite = (values as readonly number[]).filter((value) => Number.isFinite(value) && value !== 0);
  const width = finite.length === 0 ? 1 : Math.max(1, ...finite.map((value) => text(value).length));
  return { text: (value) => text(value as number).padStart(width), width };
}

function plainText(value: Element): string {
  return value === true ? 'True' : value === false ? 'False' : String(value);
}

function complexFormat(values: readonly Complex[]): Format {
  const re = realFormat(
    values.map((value) => value.re),
    true,
  );
  const im = realFormat(
    values.map((value) => value.im),
    true,
  );
  const text = (value: Element): string => {
    const { re: a, im: b } = value as Complex;
    const imaginary = im.text(b).trim();
    return `${re.text(a)}${imaginary.startsWith('-') ? '' : '+'}${imaginary}j`;
  };
  return { text, width: re.width + im.width + 1 };
}

/** Chooses between whole, fixed and scientific notation by the values shown. */
function floatText(values: readonly number[]): (value: number) => string {
  const sizes = values.filter((value) => Number.isFinite(value) && value !== 0);
  const precision = settings.precision;
  const largest = Math.max(0, ...sizes.map(Math.abs));
  const smallest = Math.min(Number.POSITIVE_INFINITY, ...sizes.map(Math.abs));
  const whole = sizes.every((value) => Number.isInteger(value));
  const far = sizes.length > 0 && (largest / smallest > 1000 || largest > 1e8 || (!whole && smallest < 1e-4));
  const scientific = settings.sciMode ?? far;
  return (value) => {
    if (Number.isNaN(value)) return 'nan';
    if (!Number.isFinite(value)) return value < 0 ? '-inf' : 'inf';
    if (scientific && sizes.length > 0) return exponent(value, precision);
    const negativeZero = Object.is(value, -0) ? '-' : '';
    if (whole) return `${negativeZero}${fixed(value, 0)}.`;
    return negativeZero + rounded(precision, (places) => fixed(value, places));
  };
}

/** `toFixed` for numbers of any size: from 1e21 on, where all are whole, JavaScript's own changes to an exponent. */
function fixed(value: number, places: number): string {
  if (Math.abs(value) < 1e21) return value.toFixed(places);
  return places === 0 ? String(BigInt(value)) : `${BigInt(value)}.${'0'.repeat(places)}`;
}

/** Digits behind the point that tell whether a number is exactly between two shorter ones. */
const exactPlaces = 40;

/** The text of a number with so many digits behind the point; where it is exactly between two such numbers, the one with an even last digit. */
function rounded(precision: number, digits: (places: number) => string): string {
  const exact = digits(Math.min(100, precision + exactPlaces));
  const end = exact.length - Math.min(100 - precision, exactPlaces);
  const kept = exact.slice(0, end).replace(/\.$/, '');
  const isTie = /^50*$/.test(exact.slice(end));
  return isTie && Number(kept.at(-1)) % 2 === 0 ? kept : digits(precision);
}

/** `1.0000e-05`: at least two digits in the exponent. */
function exponent(value: number, precision: number): string {
  const [, power = '0'] = value.toExponential(precision).split('e');
  const digits = rounded(precision, (places) => value.toExponential(places).split('e')[0] ?? '');
  const sign = power.startsWith('-') ? '-' : '+';
  return `${Object.is(value, -0) ? '-' : ''}${digits}e${sign}${power.replace(/^[+-]/, '').padStart(2, '0')}`;
}

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** The values as PyTorch prints them. */
    toString(): string;
  }
}

Tensor.prototype.toString = function toString(): string {
  return this.isDisposed ? 'tensor(<disposed>)' : formatTensor(this);
};

Object.defineProperty(Tensor.prototype, Symbol.for('nodejs.util.inspect.custom'), {
  value(this: Tensor): string {
    return this.toString();
  },
});
