// @ts-check
/**
 * @file Random calls of operators as plain data: the same number always gives the same call, here and in a replay. Most
 * arguments are of the right kind with awkward values; some are wrong on purpose.
 */

/**
 * @typedef {{ name: string, type: string, keywordOnly: boolean, default?: string }} Argument
 * @typedef {{ name: string, overload: string, args: readonly Argument[] }} Schema
 * @typedef {{ dtype: string, shape: number[], fill: string, form: string, device: string, grad: boolean }} TensorRecipe
 * @typedef {null | boolean | string | { tensor: TensorRecipe } | { int: string } | { float: string } | { dtype: string } |
 *   { device: string } | { generator: true } | { complex: [number, number] } | { bad: string } | { absent: true } | readonly unknown[]} Value
 * @typedef {{ index: number, op: string, args: Value[], kwargs: Record<string, Value> }} Call
 */

/** A small random generator (mulberry32): the sequence belongs to its seed. @param {number} seed */
export function randomSource(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** @template T @param {() => number} random @param {readonly T[]} from @returns {T} */
function pick(random, from) {
  return /** @type {T} */ (from[Math.floor(random() * from.length)]);
}

const commonShapes = [[], [1], [3], [2, 3], [3, 3], [2, 3, 4], [1, 3, 4, 4], [2, 3, 4, 4], [1, 2, 3, 4, 4]];
const oddShapes = [[0], [2, 0, 3], [0, 3], [1, 1, 1, 1, 1, 1, 1], [5], [64, 64], [2, 1], [1, 0]];
const commonDtypes = ['float32', 'float32', 'float32', 'float64', 'int64', 'int64', 'bool'];
const oddDtypes = [
  'float16',
  'bfloat16',
  'int32',
  'int16',
  'int8',
  'uint8',
  'complex64',
  'complex128',
  'float8_e4m3fn',
  'uint16',
  'uint64',
];
const fills = ['ramp', 'ramp', 'ramp', 'index', 'index', 'zero', 'nan', 'infinite', 'huge'];
const forms = ['plain', 'plain', 'plain', 'plain', 'transposed', 'expanded', 'offset'];

/** @param {() => number} random @param {{ shape: number[], dtype: string }} near @returns {Value} */
function randomTensor(random, near) {
  const shape = random() < 0.5 ? near.shape : random() < 0.8 ? pick(random, commonShapes) : pick(random, oddShapes);
  const dtype = random() < 0.6 ? near.dtype : random() < 0.75 ? pick(random, commonDtypes) : pick(random, oddDtypes);
  const device = random() < 0.03 ? 'meta' : 'cpu';
  return {
    tensor: { dtype, shape, fill: pick(random, fills), form: pick(random, forms), device, grad: random() < 0.15 },
  };
}

const badValues = [
  'undefined',
  'NaN',
  'Infinity',
  '1.5',
  'object',
  'function',
  'symbol',
  'array',
  'nested',
  'holes',
  'disposed',
  'foreign',
  'date',
  'bigint',
  'hugeBigint',
  'proxy',
  'string',
  'null',
  'dataView',
];
const integers = ['0', '0', '1', '1', '2', '3', '-1', '-1', '-2', '4', '5', '7', '16', '100'];
const oddIntegers = [
  '2147483647',
  '2147483648',
  '-2147483648',
  '4294967296',
  '9007199254740991',
  '9223372036854775807',
  '-9223372036854775808',
  '1000000',
  '-100',
];
const floats = ['0', '1', '0.5', '-1', '1e-5', '2', '1e30', 'NaN', 'Infinity', '-Infinity', '-0'];
const strings = [
  'mean',
  'sum',
  'none',
  'amax',
  'prod',
  'reflect',
  'constant',
  'circular',
  'linear',
  'nearest',
  'floor',
  'trunc',
  'left',
  'right',
  'ij',
  'ij,jk->ik',
  'forward',
  'ortho',
  'gelu',
  'tanh',
  'cpu',
  '',
  'fro',
  'nuc',
  'L',
  'U',
  'reduced',
  'zeros',
  'same',
  'valid',
  '%s%n',
  '\u0000',
  'x'.repeat(300),
];
const memoryFormats = ['contiguous_format', 'preserve_format', 'channels_last', 'channels_last_3d'];
const layouts = ['strided', 'strided', 'strided', 'sparse_coo', 'sparse_csr', 'sparse_bsr', 'mkldnn'];

/** @param {() => number} random @param {string} type @param {{ shape: number[], dtype: string }} near @returns {Value} */
function randomValue(random, type, near) {
  if (random() < 0.02) return { bad: pick(random, badValues) };
  if (type.endsWith('?')) return random() < 0.35 ? null : randomValue(random, type.slice(0, -1), near);
  const list = /^(.*)\[(\d*)\]$/.exec(type);
  if (list !== null) {
    const element = /** @type {string} */ (list[1]);
    const length = list[2] !== '' && random() < 0.85 ? Number(list[2]) : pick(random, [0, 1, 1, 2, 2, 3, 4, 5]);
    return Array.from({ length }, () => randomValue(random, element, near));
  }
  switch (type) {
    case 'Tensor':
      return randomTensor(random, near);
    case 'int':
      return { int: random() < 0.93 ? pick(random, integers) : pick(random, oddIntegers) };
    case 'float':
      return { float: pick(random, floats) };
    case 'Scalar':
      return random() < 0.5
        ? { int: pick(random, integers) }
        : random() < 0.9
          ? { float: pick(random, floats) }
          : random() < 0.5
            ? true
            : { complex: [1, -2] };
    case 'complex':
      return { complex: [1, -2] };
    case 'bool':
      return random() < 0.5;
    case 'str':
      return pick(random, strings);
    case 'ScalarType':
      return { dtype: random() < 0.7 ? pick(random, commonDtypes) : pick(random, oddDtypes) };
    case 'Device':
      return { device: random() < 0.9 ? 'cpu' : pick(random, ['meta', 'cuda', 'cuda:7', 'xyz']) };
    case 'Layout':
      return pick(random, layouts);
    case 'MemoryFormat':
      return pick(random, memoryFormats);
    case 'Generator':
      return { generator: true };
    default:
      return { bad: 'object' };
  }
}

/** Call number `index` of the sequence that belongs to `seed`. @param {readonly Schema[]} schemas @param {number} seed @param {number} index @returns {Call} */
export function randomCall(schemas, seed, index) {
  const random = randomSource(Math.imul(seed, 0x9e3779b1) ^ Math.imul(index + 1, 0x85ebca6b));
  random();
  const schema = pick(random, schemas);
  const near = { shape: pick(random, commonShapes), dtype: pick(random, commonDtypes) };
  /** @type {Value[]} */
  const args = [];
  /** @type {Record<string, Value>} */
  const kwargs = {};
  let positional = true;
  for (const arg of schema.args) {
    if (arg.default !== undefined && random() < 0.5) {
      positional = false;
      continue;
    }
    const value = randomValue(random, arg.type, near);
    if (positional && !arg.keywordOnly) args.push(value);
    else kwargs[arg.name] = value;
  }
  if (random() < 0.01) args.push({ bad: pick(random, badValues) });
  if (random() < 0.01) args.pop();
  const op = schema.overload === '' ? schema.name : `${schema.name}.${schema.overload}`;
  return { index, op, args, kwargs };
}
