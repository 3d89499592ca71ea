import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { liveTensors, MappedFile, scope } from '../index.ts';

let folder = '';
let path = '';
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'pipewright-mapped-'));
  path = join(folder, 'data.bin');
  writeFileSync(path, new Uint8Array(new Float32Array([1, 2, 3, 4, 5, 6]).buffer));
});
afterAll(() => rmSync(folder, { recursive: true }));

test('tensors lie over the file and outlive the mapping', () => {
  const before = liveTensors();
  scope(() => {
    const file = MappedFile.open(path);
    expect(file.size).toBe(24);
    const x = file.tensor({ offset: 4, dtype: 'float32', shape: [2, 2] });
    const flat = file.tensor({ offset: 0, dtype: 'float32', shape: [6] });
    file.dispose();
    expect(x.toArray()).toEqual([
      [2, 3],
      [4, 5],
    ]);
    x.mul_(10);
    expect(flat.toArray()).toEqual([1, 20, 30, 40, 50, 6]);
    using again = MappedFile.open(path);
    const unaligned = again.tensor({ offset: 1, dtype: 'float32', shape: [1] });
    expect(unaligned.shape).toEqual([1]);
  });
  expect(liveTensors()).toBe(before);
  expect([...new Float32Array(new Uint8Array(readFileSync(path)).buffer)]).toEqual([1, 2, 3, 4, 5, 6]);
});

test('what lies outside is refused, and what is no file', () => {
  using file = MappedFile.open(path);
  expect(() => file.tensor({ offset: 20, dtype: 'float32', shape: [2] })).toThrow(/outside/);
  expect(() => file.tensor({ offset: -4, dtype: 'float32', shape: [1] })).toThrow(/outside/);
  expect(() => MappedFile.open(join(folder, 'none'))).toThrow(/No such file/);
  expect(() => MappedFile.open(folder)).toThrow(/not a regular file/);
  expect(() => MappedFile.open('')).toThrow(/expected the path/);
});
