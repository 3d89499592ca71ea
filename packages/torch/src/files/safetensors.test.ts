/** @file Safetensors files: what is written comes back, and no file does more harm than an error. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import {
  dtypes,
  liveTensors,
  loadSafetensors,
  ones,
  readSafetensorsHeader,
  saveSafetensors,
  scope,
  Tensor,
  TorchError,
  tensor,
  zeros,
} from '../index.ts';

const folder = mkdtempSync(join(tmpdir(), 'safetensors-'));
afterAll(() => rmSync(folder, { recursive: true }));
const file = (name: string): string => join(folder, name);

test('every type comes back, with its bytes and metadata', () => {
  const written = new Map<string, Tensor>();
  for (const name of [
    'bool',
    'uint8',
    'int8',
    'int16',
    'int32',
    'int64',
    'float16',
    'bfloat16',
    'float32',
    'float64',
    'complex64',
    'uint16',
    'uint32',
    'uint64',
    'float8_e5m2',
    'float8_e4m3fn',
  ] as const) {
    written.set(
      name,
      tensor(
        [
          [0, 1],
          [1, 0],
        ],
        { dtype: 'float32' },
      ).to(dtypes.get(name)!),
    );
  }
  written.set('empty', zeros([0, 3]));
  written.set('scalar', tensor(2.5));
  written.set(
    'transposed',
    tensor([
      [1, 2],
      [3, 4],
    ]).t(),
  );
  saveSafetensors(file('all.safetensors'), written, { format: 'pt', note: 'é' });
  const read = loadSafetensors(file('all.safetensors'));
  expect([...read.keys()].sort()).toEqual([...written.keys()].sort());
  for (const [name, value] of written) {
    expect(read.get(name)!.dtype).toBe(value.dtype);
    expect(read.get(name)!.shape).toEqual(value.shape);
    expect(read.get(name)!.toArray()).toEqual(value.toArray());
  }
  expect(readSafetensorsHeader(file('all.safetensors')).metadata).toEqual({ format: 'pt', note: 'é' });
  expect(readdirSync(folder)).toEqual(['all.safetensors']); // no temporary file left
});

test('tensors outlive the map, and writing to them does not change the file', () => {
  saveSafetensors(file('w.safetensors'), { x: ones([4]) });
  const before = readFileSync(file('w.safetensors'));
  const x = loadSafetensors(file('w.safetensors')).get('x')!;
  x.mul_(3);
  expect(x.toArray()).toEqual([3, 3, 3, 3]);
  expect(readFileSync(file('w.safetensors'))).toEqual(before);
});

test("a file that PyTorch's side wrote is read", () => {
  const golden = loadSafetensors(new URL('../../../../testdata/golden/ops.safetensors', import.meta.url).pathname);
  expect(golden.size).toBeGreaterThan(1000);
});

test('loading in a scope leaves nothing behind', () => {
  saveSafetensors(file('s.safetensors'), { x: ones([4]) });
  const before = liveTensors();
  scope(() => void loadSafetensors(file('s.safetensors')));
  expect(liveTensors()).toBe(before);
});

function craft(header: unknown, data = 0, length?: number): string {
  const json = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header));
  const bytes = new Uint8Array(8 + json.length + data);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length ?? json.length), true);
  bytes.set(json, 8);
  writeFileSync(file('bad.safetensors'), bytes);
  return file('bad.safetensors');
}

const entry = { dtype: 'F32', shape: [2], data_offsets: [0, 8] };

test.each([
  ['no file', () => loadSafetensors(file('none')), /cannot open/],
  ['short', () => (writeFileSync(file('short'), 'abc'), loadSafetensors(file('short'))), /3 bytes, fewer than the 8/],
  ['header too long', () => loadSafetensors(craft('{}', 0, 99)), /its header claims 99 bytes/],
  ['not JSON', () => loadSafetensors(craft('{"a":')), /not JSON/],
  ['not an object', () => loadSafetensors(craft('[]')), /not a JSON object/],
  ['unknown type', () => loadSafetensors(craft({ a: { ...entry, dtype: 'F31' } }, 8)), /has type 'F31'; known are/],
  ['negative size', () => loadSafetensors(craft({ a: { ...entry, shape: [-2] } }, 8)), /not a list of sizes/],
  ['huge size', () => loadSafetensors(craft({ a: { ...entry, shape: [2 ** 40, 2 ** 40] } }, 8)), /too large/],
  ['huge and empty', () => loadSafetensors(craft({ a: { ...entry, shape: [0, 2 ** 52, 2 ** 52] } }, 8)), /too large/],
  ['nested type', () => loadSafetensors(craft({ a: { ...entry, dtype: [1] } }, 8)), /has type no string but object/],
  [
    'a name twice',
    () => loadSafetensors(craft(`{"a":${JSON.stringify(entry)},"a":${JSON.stringify(entry)}}`, 8)),
    /twice/,
  ],
  ['a folder', () => loadSafetensors(folder), /it is not a file/],
  ['outside', () => loadSafetensors(craft({ a: entry }, 4)), /the data has 4 bytes/],
  ['backwards', () => loadSafetensors(craft({ a: { ...entry, data_offsets: [8, 0] } }, 8)), /lies at 8 to 0/],
  ['shape and bytes differ', () => loadSafetensors(craft({ a: { ...entry, shape: [3] } }, 8)), /needs 12/],
  ['overlap', () => loadSafetensors(craft({ a: entry, b: entry }, 8)), /inside another tensor/],
  ['hole', () => loadSafetensors(craft({ a: { ...entry, data_offsets: [4, 12] } }, 12)), /after a hole/],
  ['rest', () => loadSafetensors(craft({ a: entry }, 9)), /1 bytes at the end belong to no tensor/],
  ['metadata', () => loadSafetensors(craft({ __metadata__: { a: 1 } })), /__metadata__ is not an object of strings/],
  ['save: not a tensor', () => saveSafetensors(file('x'), { a: 3 as unknown as Tensor }), /'a' is not a tensor/],
  ['save: meta', () => saveSafetensors(file('x'), { a: zeros([2], { device: 'meta' }) }), /meta tensor/],
  [
    'save: type',
    () => saveSafetensors(file('x'), { a: zeros([2], { dtype: 'complex128' }) }),
    /the format does not know/,
  ],
] as [string, () => unknown, RegExp][])('%s is refused', (_, call, message) => {
  expect(call).toThrow(TorchError);
  expect(call).toThrow(message);
});

test('a colon in a name is no second name', () => {
  const header = '{"a:\\"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}';
  expect([...loadSafetensors(craft(header, 8)).keys()]).toEqual(['a:"b']);
});

test('100 spoilt files load or are refused', () => {
  const script = fileURLToPath(new URL('../../../../tests/fuzz/safetensors.mjs', import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, '--files', '100', '--seed', '7'], {
    encoding: 'utf8',
  });
  expect(stdout + stderr).not.toContain('unexpected');
  expect(status).toBe(0);
  expect(stdout).toContain('100 files');
});
