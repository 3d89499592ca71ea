/** @file The search order, with folders and a Python made for the test. */

import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type FakeMachine, fakeMachine, fakeProgram, fakeTorch, pathWith } from '../../../testing/fake-machine.ts';
import {
  compareVersions,
  findLibtorch,
  formatTried,
  parseVersionPy,
  readVersion,
  STAMP_FILE,
} from './find-libtorch.ts';

let machine: FakeMachine;
beforeEach(() => {
  machine = fakeMachine();
});
afterEach(() => machine.dispose());

/** A machine where all three places have one. */
function fillAll(): NodeJS.ProcessEnv {
  const explicit = fakeTorch(join(machine.root, 'explicit'), '2.11.0+cu130');
  fakeTorch(machine.places.libtorchDir, '2.15.0+cu132');
  writeFileSync(join(machine.places.libtorchDir, STAMP_FILE), '{}');
  const python = fakeTorch(join(machine.root, 'python'), '2.14.1');
  const bin = join(machine.root, 'bin');
  fakeProgram(bin, 'python3', `[ "$1" = --version ] && echo Python 3.12.1 || echo ${python}`);
  return { ...machine.env, PATH: bin, PIPEWRIGHT_LIBTORCH: explicit };
}

test('first PIPEWRIGHT_LIBTORCH, then the folder of the set-up, then Python', () => {
  const env = fillAll();
  const found = (): string | undefined => {
    const result = findLibtorch(machine.places, { env }).found;
    return result ? `${result.source} ${result.version} ${result.cudaVersion} ${result.hasCuda}` : undefined;
  };
  expect(found()).toBe('PIPEWRIGHT_LIBTORCH 2.11.0+cu130 13.2 true');
  delete env['PIPEWRIGHT_LIBTORCH'];
  expect(found()).toBe('set-up 2.15.0+cu132 13.2 true');
  rmSync(machine.places.libtorchDir, { recursive: true });
  expect(found()).toBe('python 2.14.1 13.2 true');
  expect(findLibtorch(machine.places, { env, python: false }).found).toBeNull();
});

test('PIPEWRIGHT_LIBTORCH may name the torch folder or the one around it', () => {
  const env = fillAll();
  for (const path of ['explicit', 'explicit/torch'])
    expect(
      findLibtorch(machine.places, { env: { ...env, PIPEWRIGHT_LIBTORCH: join(machine.root, path) } }).found?.dir,
    ).toMatch(/explicit\/torch$/);
});

test('a wrong PIPEWRIGHT_LIBTORCH is not passed over', () => {
  const env = { ...fillAll(), PIPEWRIGHT_LIBTORCH: join(machine.root, 'nothing') };
  const { found, tried } = findLibtorch(machine.places, { env });
  expect(found).toBeNull();
  expect(formatTried(tried).replaceAll(machine.root, '')).toBe(
    '  looked at PIPEWRIGHT_LIBTORCH: /nothing: no lib/libtorch_cpu.so in it',
  );
});

test('says what was wrong with each place', () => {
  fakeTorch(machine.places.libtorchDir, '2.15.0');
  const old = fakeTorch(join(machine.root, 'python'), '2.3.0');
  const bin = join(machine.root, 'bin');
  fakeProgram(bin, 'python3', `[ "$1" = --version ] && echo Python 3.12.1 || echo ${old}`);
  const { tried } = findLibtorch(machine.places, { env: { ...machine.env, PATH: bin } });
  expect(formatTried(tried).replaceAll(machine.root, '')).toMatchInlineSnapshot(`
    "  looked at set-up: /state/libtorch: not finished
      looked at python: /python/torch: version 2.3.0, but 2.11.0 or later is needed"
  `);
});

test('a machine without Python', () => {
  const env = { ...machine.env, PATH: pathWith(machine.root, []) };
  expect(formatTried(findLibtorch(machine.places, { env }).tried).replaceAll(machine.root, '')).toMatchInlineSnapshot(`
    "  looked at set-up: /state/libtorch: not there
      looked at python: python3: no importable torch"
  `);
});

test('the version comes from version.py, or from the headers', () => {
  const dir = fakeTorch(join(machine.root, 'zip'), '2.15.0');
  expect(readVersion(dir)).toEqual({ version: '2.15.0', cudaVersion: '13.2' });
  rmSync(join(dir, 'version.py'));
  expect(readVersion(dir)).toEqual({ version: '2.15.0', cudaVersion: null });
  writeFileSync(join(dir, 'build-version'), '2.15.0+cpu\n');
  expect(readVersion(dir)).toEqual({ version: '2.15.0+cpu', cudaVersion: null });
  expect(parseVersionPy("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = None\n")).toEqual({
    version: '2.11.0+cu130',
    cudaVersion: null,
  });
});

test('versions compare by number', () => {
  expect(['2.15.0+cu132', '2.9.1', '2.11.0', '2.9'].sort(compareVersions)).toEqual([
    '2.9',
    '2.9.1',
    '2.11.0',
    '2.15.0+cu132',
  ]);
});
