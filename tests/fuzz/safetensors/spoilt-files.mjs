// @ts-check
/** @file Spoilt safetensors files: a sound one, changed in one of many ways. The same seed and number give the same file. */

/** @typedef {() => number} Random */
/** @typedef {{ kind: string, bytes: Uint8Array }} SpoiltFile */

/** Numbers in [0, 1) by a seed (mulberry32). @param {number} seed @returns {Random} */
function randomBy(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** @param {Random} random @param {number} limit */
const below = (random, limit) => Math.floor(random() * limit);
/** @template T @param {Random} random @param {readonly T[]} values @returns {T} */
const pick = (random, values) => /** @type {T} */ (values[below(random, values.length)]);

const widths = { F32: 4, I64: 8, BOOL: 1, BF16: 2, F8_E4M3: 1, C64: 8, U16: 2 };
const odd = [-1, 0, 1, 0.5, 2 ** 31, 2 ** 32, 2 ** 53 - 1, 2 ** 53, 2 ** 63, 1e308, null, '4', true, [], {}];

/** A header as entries, in order, so that names may come twice. @typedef {[name: string, entry: any][]} Header */

/** @param {Random} random @returns {{ header: Header, data: Uint8Array }} */
function soundFile(random) {
  /** @type {Header} */
  const header = [];
  let position = 0;
  if (random() < 0.5) header.push(['__metadata__', { format: 'pt', step: '3' }]);
  const count = below(random, 5);
  for (let i = 0; i < count; i++) {
    const dtype = pick(random, /** @type {(keyof typeof widths)[]} */ (Object.keys(widths)));
    const shape = Array.from({ length: below(random, 4) }, () => below(random, 5));
    const bytes = shape.reduce((product, size) => product * size, widths[dtype]);
    header.push([`layer.${i}.weight`, { dtype, shape, data_offsets: [position, position + bytes] }]);
    position += bytes;
  }
  return { header, data: Uint8Array.from({ length: position }, () => below(random, 256)) };
}

/** JSON with raw text where an entry says so. @param {unknown} value @returns {string} */
function text(value) {
  if (typeof value === 'object' && value !== null && 'raw' in value) return String(value.raw);
  if (Array.isArray(value)) return `[${value.map(text).join()}]`;
  if (typeof value === 'object' && value !== null)
    return `{${Object.entries(value)
      .map(([key, each]) => `${JSON.stringify(key)}:${text(each)}`)
      .join()}}`;
  return JSON.stringify(value) ?? 'null';
}

/** @param {Header} header */
const headerText = (header) => `{${header.map(([name, entry]) => `${JSON.stringify(name)}:${text(entry)}`).join()}}`;

/** @param {string | Uint8Array} header @param {Uint8Array} data @param {bigint} [claimed] */
function fileOf(header, data, claimed) {
  const json = typeof header === 'string' ? new TextEncoder().encode(header) : header;
  const bytes = new Uint8Array(8 + json.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt.asUintN(64, claimed ?? BigInt(json.length)), true);
  bytes.set(json, 8);
  bytes.set(data, 8 + json.length);
  return bytes;
}

/** An entry of the header that is a tensor, made where there is none. @param {Random} random @param {Header} header */
function anyEntry(random, header) {
  const tensors = header.filter(([name]) => name !== '__metadata__');
  if (tensors.length > 0) return pick(random, tensors)[1];
  const entry = { dtype: 'F32', shape: [0], data_offsets: [0, 0] };
  header.push(['x', entry]);
  return entry;
}

/** @param {Random} random */
function deep(random) {
  const depth = pick(random, [10, 1000, 100_000, 2_000_000]);
  const [open, close] = pick(random, [
    ['[', ']'],
    ['{"a":', '}'],
  ]);
  return { raw: open.repeat(depth) + (random() < 0.8 ? '0' + close.repeat(depth) : '') };
}

/** @type {Record<string, (random: Random, sound: { header: Header, data: Uint8Array }) => Uint8Array>} */
const ways = {
  sound: (_, { header, data }) => fileOf(headerText(header), data),
  'bits flipped': (random, { header, data }) => {
    const bytes = fileOf(headerText(header), data);
    const count = 1 + below(random, 8);
    for (let i = 0; i < count; i++) {
      const at = below(random, bytes.length);
      bytes[at] = /** @type {number} */ (bytes[at]) ^ (1 << below(random, 8));
    }
    return bytes;
  },
  'cut short': (random, { header, data }) => {
    const bytes = fileOf(headerText(header), data);
    return bytes.subarray(0, below(random, bytes.length));
  },
  'bytes behind': (random, { header, data }) => {
    const more = Uint8Array.from({ length: data.length + 1 + below(random, 64) }, () => below(random, 256));
    more.set(data);
    return fileOf(headerText(header), more);
  },
  'length of the header': (random, { header, data }) => {
    const json = headerText(header);
    const claims = [0n, 1n, -1n, 2n ** 63n, 2n ** 53n, 2n ** 32n, 100_000_000n, 100_000_001n];
    return fileOf(json, data, pick(random, [...claims, BigInt(json.length + below(random, 64) - 32)]));
  },
  offsets: (random, { header, data }) => {
    const entry = anyEntry(random, header);
    const [begin, end] = entry.data_offsets;
    entry.data_offsets = pick(random, [
      [end, begin],
      [begin + 1, end + 1],
      [begin - 1, end - 1],
      [0, end],
      [begin, pick(random, odd)],
      [pick(random, odd), end],
      [begin],
      [begin, end, end],
      pick(random, odd),
      deep(random),
    ]);
    return fileOf(headerText(header), data);
  },
  overlap: (random, { header, data }) => {
    header.push(['twin', { ...anyEntry(random, header) }]);
    return fileOf(headerText(header), data);
  },
  dtype: (random, { header, data }) => {
    anyEntry(random, header).dtype = pick(random, ['F64', 'f32', 'F4', '', ...odd, deep(random)]);
    return fileOf(headerText(header), data);
  },
  shape: (random, { header, data }) => {
    const entry = anyEntry(random, header);
    const huge = 2 ** 53 - 1;
    entry.shape = pick(random, [
      [...entry.shape, pick(random, odd)],
      [0, huge, huge],
      [huge, huge, 0],
      [2 ** 32, 2 ** 32],
      Array.from({ length: pick(random, [64, 65, 100_000]) }, () => 1),
      Array.from({ length: 64 }, () => huge),
      Array.from({ length: 64 }, (_, i) => (i === 0 ? 0 : huge)),
      pick(random, odd),
      deep(random),
    ]);
    return fileOf(headerText(header), data);
  },
  'nested deep': (random, { header, data }) => {
    header.push([pick(random, ['__metadata__', 'x']), deep(random)]);
    return fileOf(headerText(header), data);
  },
  duplicates: (random, { header, data }) => {
    const entry = anyEntry(random, header);
    const name = header.find(([, each]) => each === entry)?.[0] ?? 'x';
    header.push([name, { ...entry, shape: random() < 0.5 ? entry.shape : [1] }]);
    return fileOf(headerText(header), data);
  },
  names: (random, { header, data }) => {
    const entry = anyEntry(random, header);
    const at = header.findIndex(([, each]) => each === entry);
    header[at] = [pick(random, ['__proto__', 'constructor', '', '\0', '\ud800', 'n'.repeat(1_000_000)]), entry];
    return fileOf(headerText(header), data);
  },
  metadata: (random, { header, data }) => {
    const value = pick(random, [...odd, { a: 1 }, { a: null }, { __proto__: { a: 1 } }, deep(random)]);
    return fileOf(headerText([...header.filter(([name]) => name !== '__metadata__'), ['__metadata__', value]]), data);
  },
  'another JSON': (random, { data }) => {
    const rests = [
      '[]',
      'null',
      '0',
      '"x"',
      '',
      '{',
      '{}{}',
      '{"a":}',
      '{}'.padEnd(1000),
      '\ufeff{}',
      deep(random).raw,
    ];
    return fileOf(pick(random, rests), data);
  },
  'not UTF-8': (random, { header, data }) => {
    const json = new TextEncoder().encode(headerText(header));
    json[below(random, json.length)] = pick(random, [0x80, 0xc0, 0xff, 0xed]);
    return fileOf(json, data);
  },
  noise: (random) => Uint8Array.from({ length: below(random, 4096) }, () => below(random, 256)),
};

export const kinds = Object.keys(ways);

/** @param {number} seed @param {number} number @returns {SpoiltFile} */
export function spoiltFile(seed, number) {
  const random = randomBy(Math.imul(seed, 0x9e3779b1) ^ number);
  const kind = /** @type {string} */ (kinds[number % kinds.length]);
  return { kind, bytes: /** @type {any} */ (ways)[kind](random, soundFile(random)) };
}
