// @ts-check
/** @file Spoils `.pt2` files in many ways: bytes, the container, and the JSON inside with its checksum made right again. */
import { readZip, writeZip } from '../../../packages/pipewright/testing/zip-writer.mjs';

/** Random numbers that are the same for the same seed. @param {number} seed */
export function randomFrom(seed) {
  let state = (seed * 2654435761 + 1) >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let value = state;
    value = Math.imul(value ^ (value >>> 15), value | 1);
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61);
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (/** @type {number} */ count) => Math.floor(next() * count);
  return {
    next,
    below,
    /** @template T @param {readonly T[]} list @returns {T} */
    pick: (list) => /** @type {T} */ (list[below(list.length)]),
  };
}

/** @typedef {ReturnType<typeof randomFrom>} Random */
/** @typedef {import('../../../packages/pipewright/testing/zip-writer.mjs').Entry} Entry */

const strangeNames = [
  '../outside',
  '../../../../tmp/outside',
  '/etc/outside',
  'a/../../outside',
  '..\\outside',
  'x\0y',
  '',
  '.',
  'model/../..',
  'm/data/weights/weight_0',
];

const strangeValues = [
  null,
  true,
  [],
  {},
  '',
  'x',
  -1,
  0,
  1,
  3,
  1e308,
  0.5,
  2 ** 31,
  2 ** 53,
  2 ** 62,
  'Infinity',
  '__proto__',
  '../../outside',
  { as_int: -5 },
  { as_int: 2 ** 40 },
  { as_tensor: { name: 'x' } },
  { as_none: true, as_int: 1 },
  { as_expr: { expr_str: `${'Add('.repeat(300)}1${')'.repeat(300)}`, hint: null } },
  { as_expr: { expr_str: '__import__("os").system("touch /tmp/outside")', hint: null } },
  { as_custom_obj: { name: 'o', class_fqn: 'a.B' } },
  { as_sym_int: { as_name: 'nothing' } },
  { as_graph: { name: 'g', graph: {} } },
  { as_operator: 'os.system' },
  { as_string_to_argument: { __proto__: { as_int: 1 } } },
];

const strangeTargets = [
  'torch.ops.aten.nothing.default',
  'torch.ops.aten.add.Nothing',
  'torch.ops.higher_order.cond',
  'torch.ops.higher_order.while_loop',
  'torch.ops.aten.from_file.default',
  'os.system',
  '#ns:op',
  '_operator.floordiv',
  'torch.ops.aten.linear.default',
  'torch.ops.aten.cat.default',
  'torch.ops.aten.split.Tensor',
  'torch.sym_ite',
];

/** @type {Record<string, (entries: Entry[], random: Random, whole: Buffer) => Buffer>} */
const mutations = {
  bytes(_, random, whole) {
    const spoilt = Buffer.from(whole);
    for (let i = 0; i <= random.below(8); i++) spoilt[random.below(spoilt.length)] = random.below(256);
    return spoilt;
  },
  directoryBytes(_, random, whole) {
    const spoilt = Buffer.from(whole);
    const start = Math.max(0, spoilt.length - 4000);
    for (let i = 0; i <= random.below(4); i++)
      spoilt[start + random.below(spoilt.length - start)] = random.pick([0, 1, 0x7f, 0xff, random.below(256)]);
    return spoilt;
  },
  cut: (_, random, whole) => whole.subarray(0, random.below(whole.length)),
  cutBegin: (_, random, whole) => whole.subarray(random.below(whole.length)),
  doubled: (_, __, whole) => Buffer.concat([whole, whole]),
  noise: (_, random) => Buffer.from(Array.from({ length: random.below(5000) }, () => random.below(256))),
  nested: (_, __, whole) => writeZip([{ name: 'm/data.pkl', bytes: whole }]),
  names(entries, random) {
    const entry = random.pick(entries);
    entry.name = random.pick(strangeNames);
    return writeZip(entries);
  },
  twice: (entries, random) => writeZip([...entries, { ...random.pick(entries) }]),
  missing(entries, random) {
    entries.splice(random.below(entries.length), 1);
    return writeZip(entries);
  },
  headers(entries, random) {
    const entry = random.pick(entries);
    const wild = random.pick([0, 1, 2 ** 31, 2 ** 32 - 2, 2 ** 32 - 1, entry.bytes.length + 1, random.below(1e6)]);
    Object.assign(entry, { [random.pick(['size', 'offset', 'crc', 'method', 'flags'])]: wild });
    if (entry.method !== undefined) entry.method &= 0xffff;
    if (entry.flags !== undefined) entry.flags &= 0xffff;
    return writeZip(entries);
  },
  end: (entries, random) =>
    writeZip(entries, {
      count: random.pick([0, 1, 65535, entries.length + 1]),
      start: random.pick([0, 22, 2 ** 32 - 1, 2 ** 31]),
    }),
  texts(entries, random) {
    const entry = entries.find(({ name }) =>
      name.endsWith(random.pick(['archive_format', 'archive_version', 'byteorder'])),
    );
    if (entry) entry.bytes = Buffer.from(random.pick(['', 'pt3', 'big', '1', 'x'.repeat(2000)]));
    return writeZip(entries);
  },
  weights(entries, random) {
    const payloads = entries.filter(({ name }) => /weight_\d+$/.test(name));
    if (payloads.length > 0) {
      const entry = random.pick(payloads);
      entry.bytes = entry.bytes.subarray(0, random.below(entry.bytes.length + 1));
    }
    return writeZip(entries);
  },
  jsonText(entries, random) {
    const entry = random.pick(entries.filter(({ name }) => name.endsWith('.json')));
    const text = Buffer.from(entry.bytes);
    for (let i = 0; i <= random.below(3) && text.length > 0; i++)
      text[random.below(text.length)] = random.pick([...Buffer.from('{}[]",:0129-ex\\')]);
    entry.bytes = random.below(20) === 0 ? Buffer.from('['.repeat(random.pick([100, 1000, 200_000]))) : text;
    return writeZip(entries);
  },
  jsonValues: (entries, random) => changeJson(entries, random, changeValue),
  jsonMany: (entries, random) =>
    changeJson(entries, random, (json, dice) => {
      for (let i = 0; i < 5; i++) changeValue(json, dice);
    }),
  jsonSwap: (entries, random) =>
    changeJson(entries, random, (json, dice) => {
      const [a, b] = [pickPlace(json, dice), pickPlace(json, dice)];
      if (a && b) [a.holder[a.key], b.holder[b.key]] = [copied(b.holder[b.key]), copied(a.holder[a.key])];
    }),
  jsonNodes: (entries, random) => changeJson(entries, random, changeNodes, 'models/'),
  jsonSizes: (entries, random) => changeJson(entries, random, changeSizes),
  jsonNesting: (entries, random) =>
    changeJson(
      entries,
      random,
      (json, dice) => {
        const nodes = json?.graph_module?.graph?.nodes;
        if (!Array.isArray(nodes) || nodes.length === 0) return;
        let graph = copied(json.graph_module.graph);
        const depth = dice.pick([2, 5, 40]);
        for (let i = 0; i < depth && JSON.stringify(graph).length < 3e6; i++)
          graph = {
            ...graph,
            nodes: [{ ...copied(nodes[0]), inputs: [{ name: '', arg: { as_graph: { name: 'g', graph } }, kind: 1 }] }],
          };
        nodes.push({
          target: 'torch.ops.higher_order.wrap',
          inputs: graph.nodes[0].inputs,
          outputs: [],
          metadata: {},
          name: 'w',
        });
      },
      'models/',
    ),
};

/** Kinds of mutations. */
export const mutationNames = Object.keys(mutations);

/** A spoilt copy of a file: always the same for the same number. @param {string} path @param {number} seed @param {Buffer} whole */
export function mutate(path, seed, whole) {
  const random = randomFrom(seed);
  const kind = /** @type {string} */ (mutationNames[seed % mutationNames.length]);
  const entries = readZip(path).map((entry) => ({ ...entry, bytes: Buffer.from(entry.bytes) }));
  return {
    kind,
    bytes: /** @type {NonNullable<typeof mutations[string]>} */ (mutations[kind])(entries, random, whole),
  };
}

/** @param {any} value */
function copied(value) {
  return value === undefined ? undefined : JSON.parse(JSON.stringify(value));
}

/** @param {Entry[]} entries @param {Random} random @param {(json: any, random: Random) => void} change @param {string} [where] */
function changeJson(entries, random, change, where = '') {
  const entry = random.pick(entries.filter(({ name }) => name.endsWith('.json') && name.includes(where)));
  const json = JSON.parse(Buffer.from(entry.bytes).toString('utf8'));
  change(json, random);
  entry.bytes = Buffer.from(JSON.stringify(json) ?? 'null');
  return writeZip(entries);
}

/** A random place in a document. @param {any} json @param {Random} random @returns {{ holder: any, key: string } | undefined} */
function pickPlace(json, random) {
  let holder = json;
  for (let depth = 0; ; depth++) {
    const keys = Object.keys(holder);
    if (keys.length === 0) return undefined;
    const key = random.pick(keys);
    const inside = holder[key];
    if (
      typeof inside !== 'object' ||
      inside === null ||
      Object.keys(inside).length === 0 ||
      (depth > 2 && random.below(6) === 0)
    )
      return { holder, key };
    holder = inside;
  }
}

/** @param {any} json @param {Random} random */
function changeValue(json, random) {
  const place = pickPlace(json, random);
  if (place === undefined) return;
  const { holder, key } = place;
  switch (random.below(4)) {
    case 0:
      if (Array.isArray(holder)) holder.splice(Number(key), 1);
      else delete holder[key];
      break;
    case 1:
      if (Array.isArray(holder)) holder.push(copied(holder[Number(key)]));
      else holder[random.pick(['__proto__x', 'as_int', 'name', `${key}_`])] = copied(holder[key]);
      break;
    default:
      holder[key] = copied(random.pick(strangeValues));
  }
}

/** @param {any} json @param {Random} random */
function changeNodes(json, random) {
  const nodes = json?.graph_module?.graph?.nodes;
  if (!Array.isArray(nodes) || nodes.length === 0) return;
  const [node, other] = [random.pick(nodes), random.pick(nodes)];
  switch (random.below(6)) {
    case 0:
      node.target = random.pick(strangeTargets);
      break;
    case 1:
      node.target = other.target;
      break;
    case 2:
      node.outputs = copied(other.outputs);
      break;
    case 3:
      node.inputs = copied(other.inputs);
      break;
    case 4:
      nodes.reverse();
      break;
    default:
      for (const input of node.inputs) input.arg = copied(random.pick(strangeValues));
  }
}

/** @param {any} json @param {Random} random */
function changeSizes(json, random) {
  const wild = () => random.pick([-1, 0, 1, 7, 2 ** 20, 2 ** 31, 2 ** 40, 2 ** 53, 2 ** 62]);
  /** @param {any} value */
  const visit = (value) => {
    if (typeof value !== 'object' || value === null) return;
    for (const key of Object.keys(value)) {
      if (key === 'as_int' && random.below(3) === 0) value[key] = wild();
      else if (key === 'dtype' && random.below(4) === 0) value[key] = random.below(40);
      else visit(value[key]);
    }
  };
  visit(json.config ?? json.graph_module?.graph?.tensor_values ?? json);
}
