// @ts-check
/** @file The JavaScript values of a random call, from its description as data. */
import * as torch from '@pipewright/torch';

/** @typedef {import('./random-call.mjs').Value} Value @typedef {import('./random-call.mjs').TensorRecipe} TensorRecipe */

/** The numbers of a tensor; replay.py makes the same. @param {string} fill @param {number} count @param {string} dtype */
function numbers(fill, count, dtype) {
  const whole = !/float|complex/.test(dtype);
  const at = {
    ramp: (/** @type {number} */ i) => (whole ? i % 7 : (i % 11) / 3 - 1.5),
    index: (/** @type {number} */ i) => i % 3,
    zero: () => 0,
    nan: () => (whole ? 1 : Number.NaN),
    infinite: (/** @type {number} */ i) => (whole ? 2 : i % 2 === 0 ? Infinity : -Infinity),
    huge: () => (whole ? 100 : 1e30),
  }[fill];
  if (at === undefined) throw new Error(`fuzz: unknown fill ${fill}`);
  return Float64Array.from({ length: count }, (_, i) => at(i));
}

/** @param {TensorRecipe} recipe */
export function buildTensor({ dtype, shape, fill, form, device, grad }) {
  const count = shape.reduce((product, size) => product * size, 1);
  const name = /** @type {import('@pipewright/torch').DTypeName} */ (dtype);
  let made = torch.fromTypedArray(numbers(fill, count, dtype), shape).to(name);
  if (form === 'transposed' && shape.length >= 2) made = made.transpose(-1, -2).contiguous().transpose(-1, -2);
  else if (form === 'expanded')
    made = made
      .unsqueeze(0)
      .expand([2, ...shape])
      .select(0, 1);
  else if (form === 'offset') made = torch.stack([made, made]).select(0, 1);
  if (device === 'meta') made = made.to('meta');
  if (grad && (made.dtype.isFloatingPoint || made.dtype.isComplex) && made.dtype.itemSize > 1)
    made = made.detach().requiresGrad_();
  return made;
}

const bad = {
  undefined: () => undefined,
  NaN: () => Number.NaN,
  Infinity: () => Infinity,
  1.5: () => 1.5,
  object: () => ({}),
  function: () => () => 1,
  symbol: () => Symbol('x'),
  array: () => [1, 'a', null],
  nested: () => [[1], [2, [3]]],
  holes: () => new Array(3),
  disposed: () => {
    const gone = torch.zeros(2);
    gone.dispose();
    return gone;
  },
  foreign: () => ({ h: 1, owner: null }),
  date: () => new Date(0),
  bigint: () => 3n,
  hugeBigint: () => 2n ** 70n,
  proxy: () => new Proxy([1, 2], {}),
  string: () => 'float32',
  null: () => null,
  dataView: () => new DataView(new ArrayBuffer(4)),
};

/** @param {string} text */
function number(text) {
  return Number(text.replace('inf', 'Infinity'));
}

/** @param {Value} value @returns {unknown} */
export function buildValue(value) {
  if (Array.isArray(value)) return value.map((each) => buildValue(each));
  if (typeof value !== 'object' || value === null) return value;
  if ('tensor' in value) return buildTensor(value.tensor);
  if ('int' in value)
    return Math.abs(Number(value.int)) > Number.MAX_SAFE_INTEGER ? BigInt(value.int) : Number(value.int);
  if ('float' in value) return torch.float(number(value.float));
  if ('dtype' in value) return value.dtype;
  if ('device' in value) return value.device;
  if ('complex' in value) return { re: value.complex[0], im: value.complex[1] };
  if ('generator' in value) return new torch.Generator().manualSeed(1);
  if ('bad' in value) return /** @type {Record<string, () => unknown>} */ (bad)[value.bad]?.();
  return undefined;
}

/** @param {string} name */
export function camelCase(name) {
  return name.replace(/(?<=[a-z0-9A-Z])_+([a-z0-9])/g, (_, letter) => letter.toUpperCase());
}
