/** @file Fetching through pip from a folder of small wheels: complete, checked, repaired after damage and after kills. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  type FakeMachine,
  fakeMachine,
  fakeProgram,
  HeardProgress,
  pathWith,
  publishWheels,
  torchFiles,
  writeWheel,
} from '../../../testing/fake-machine.ts';
import { announcedSize } from './download-wheel.ts';
import { checkLibtorch, type FetchResult, fetchLibtorch } from './fetch-libtorch.ts';
import { findLibtorch } from './find-libtorch.ts';
import { cudaWheels, torchWheel } from './parts.ts';

const VERSION = '2.15.0';
let machine: FakeMachine;
let heard: HeardProgress;
beforeEach(() => {
  machine = fakeMachine();
  heard = new HeardProgress();
  publishWheels(machine, VERSION);
});
afterEach(() => machine.dispose());

function fetch(more: { verify?: boolean } = {}): Promise<FetchResult> {
  return fetchLibtorch({ places: machine.places, env: machine.env, progress: heard, ...more });
}

function unpacked(): string[] {
  const { libtorchDir } = machine.places;
  return readdirSync(libtorchDir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(libtorchDir.length + 1))
    .sort();
}

test('unpacks what a CPU machine needs and nothing else; the second time does nothing', async () => {
  expect(await fetch()).toEqual({ dir: machine.places.libtorchDir, fetched: true });
  expect(unpacked()).toEqual([
    'nvidia/cu13/lib/libcudart.so.13',
    'nvidia/cu13/lib/libcupti.so.13',
    'stamp.json',
    'torch/include/ATen/ATen.h',
    'torch/include/torch/headeronly/version.h',
    'torch/lib/libc10.so',
    'torch/lib/libgomp.so.1',
    'torch/lib/libtorch_cpu.so',
    'torch/version.py',
  ]);
  expect(findLibtorch(machine.places, { env: machine.env }).found).toMatchObject({ version: VERSION, hasCuda: false });
  expect(heard.said.filter((line) => line.startsWith('download '))).toHaveLength(3);
  heard.said.length = 0;
  expect((await fetch()).fetched).toBe(false);
  expect(heard.said).toEqual([]);
});

test('the headers come when they are wanted, and nothing that was there is touched', async () => {
  publishWheels(machine, VERSION, 'cache');
  const some = (parts: ('headers' | 'runtime')[]): Promise<FetchResult> =>
    fetchLibtorch({ places: machine.places, env: machine.env, progress: heard, parts });
  const library = join(machine.places.libtorchDir, 'torch/lib/libtorch_cpu.so');
  expect((await some([])).fetched).toBe(true);
  expect(unpacked().filter((name) => name.includes('include'))).toEqual([]);
  expect(findLibtorch(machine.places, { env: machine.env }).found).toMatchObject({ version: VERSION });
  const before = statSync(library);
  expect((await some([])).fetched).toBe(false);
  expect((await some(['headers'])).fetched).toBe(true);
  expect(unpacked().filter((name) => name.includes('include'))).toHaveLength(2);
  expect(statSync(library).ino).toBe(before.ino);
  expect((await some(['headers'])).fetched).toBe(false);
  expect((await some([])).fetched).toBe(false);
  expect(await checkLibtorch(machine.places.libtorchDir, VERSION, true)).toBeNull();
});

test('downloads of earlier are used again', async () => {
  publishWheels(machine, VERSION, 'cache');
  await fetch();
  expect(heard.said.filter((line) => /^(unpack|download)/.test(line)).map((line) => line.split(' ')[0])).toEqual([
    'unpack',
    'unpack',
    'unpack',
  ]);
});

test('a wheel in the cache that somebody has exchanged is thrown away, though its own list is in order', async () => {
  const name = `torch-${VERSION}-py3-none-any.whl`;
  const good = readFileSync(join(machine.root, 'index', name));
  const hashes = new Map([[name, createHash('sha256').update(good).digest('hex')]]);
  publishWheels(machine, VERSION, 'cache');
  const wheels = join(machine.places.cacheDir, 'wheels');
  const files = { ...torchFiles(VERSION), 'torch/lib/libc10.so': 'evil' };
  writeWheel(wheels, { name: 'torch', version: VERSION, tag: 'py3-none-any', files });
  await fetchLibtorch({ places: machine.places, env: machine.env, progress: heard, hashes });
  expect(readFileSync(join(machine.places.libtorchDir, 'torch/lib/libc10.so'), 'utf8')).not.toBe('evil');
  expect(heard.said.some((line) => /has SHA-256 \w+, but \w+ was published: downloading it again/.test(line))).toBe(
    true,
  );
  expect(readFileSync(join(wheels, name)).equals(good)).toBe(true);
  // From the index, too: then it is an error, and nothing of it is kept.
  writeWheel(join(machine.root, 'index'), { name: 'torch', version: VERSION, tag: 'py3-none-any', files });
  rmSync(join(wheels, name));
  rmSync(machine.places.libtorchDir, { recursive: true });
  const again = fetchLibtorch({ places: machine.places, env: machine.env, progress: heard, hashes });
  await expect(again).rejects.toMatchObject({ code: 'WHEEL_CORRUPT' });
  expect(existsSync(join(wheels, name))).toBe(false);
});

test('a file that was damaged after unpacking is found by --verify and repaired; a cut library at once', async () => {
  publishWheels(machine, VERSION, 'cache');
  await fetch();
  const header = join(machine.places.libtorchDir, 'torch/include/ATen/ATen.h');
  writeFileSync(header, '#pragma twice');
  expect((await fetch()).fetched).toBe(false);
  expect((await fetch({ verify: true })).fetched).toBe(true);
  expect(readFileSync(header, 'utf8')).toBe('#pragma once\n');
  writeFileSync(join(machine.places.libtorchDir, 'torch/lib/libtorch_cpu.so'), 'cut');
  expect((await fetch()).fetched).toBe(true);
  expect(heard.said.filter((line) => line.startsWith('libtorch is'))).toMatchInlineSnapshot(`
    [
      "libtorch is fetched again: torch/include/ATen/ATen.h does not have its hash",
      "libtorch is fetched again: torch/lib/libtorch_cpu.so has 3 bytes, expected 2100000",
    ]
  `);
  expect(await checkLibtorch(machine.places.libtorchDir, VERSION, true)).toBeNull();
});

test('a damaged wheel in the cache is brought again', async () => {
  publishWheels(machine, VERSION, 'cache');
  const wheels = join(machine.places.cacheDir, 'wheels');
  const name = readdirSync(wheels).find((file) => file.startsWith('torch-')) ?? '';
  writeFileSync(join(wheels, name), readFileSync(join(wheels, name)).subarray(0, 5000));
  expect((await fetch()).fetched).toBe(true);
  expect(heard.said.some((line) => line.includes('is damaged') && line.endsWith('downloading it again'))).toBe(true);
});

test('a wheel that comes damaged from the index is an error, and is not kept', async () => {
  const files = torchFiles(VERSION);
  const lieAbout = ['torch/lib/libc10.so'];
  writeWheel(join(machine.root, 'index'), { name: 'torch', version: VERSION, tag: 'py3-none-any', files, lieAbout });
  await expect(fetch()).rejects.toMatchObject({ code: 'WHEEL_CORRUPT' });
  expect(readdirSync(join(machine.places.cacheDir, 'wheels'))).toEqual([]);
  expect(existsSync(machine.places.libtorchDir)).toBe(false);
});

test('what pip cannot bring is an error with what pip said', async () => {
  rmSync(join(machine.root, 'index', `torch-${VERSION}-py3-none-any.whl`));
  await expect(fetch()).rejects.toMatchObject({
    code: 'DOWNLOAD_FAILED',
    message: expect.stringMatching(
      /pip could not bring torch==2\.15\.0:[^]*No matching distribution[^]*PIPEWRIGHT_LIBTORCH/,
    ),
  });
});

test('without Python there is an error with the command that brings it', async () => {
  const env = { ...machine.env, PATH: pathWith(machine.root, ['apt-get']) };
  await expect(fetchLibtorch({ places: machine.places, env, progress: heard })).rejects.toMatchObject({
    code: 'PYTHON_NOT_FOUND',
    message: expect.stringContaining('install -y python3 python3-pip'),
  });
});

test('a Python without pip is an error with the command that brings pip', async () => {
  const bin = pathWith(machine.root, ['apt-get', 'cat', 'sh']);
  fakeProgram(
    bin,
    'python3',
    '[ "$1" = --version ] && echo Python 3.12.1 || { echo "No module named pip" >&2; exit 1; }',
  );
  await expect(
    fetchLibtorch({ places: machine.places, env: { ...machine.env, PATH: bin }, progress: heard }),
  ).rejects.toMatchObject({
    code: 'PYTHON_NOT_FOUND',
    message: expect.stringMatching(/\(Python 3\.12\.1\) has no pip; bring it with: .*install -y python3-pip/),
  });
});

test('two at once: one fetches, the other waits and finds it done', async () => {
  publishWheels(machine, VERSION, 'cache');
  const results = await Promise.all([fetch(), fetch()]);
  expect(results.map(({ fetched }) => fetched).sort()).toEqual([false, true]);
});

test('killed at random moments, the next run repairs it', async () => {
  const module = new URL('../../../dist/setup/index.js', import.meta.url).href;
  const fetchModule = new URL('../../../dist/setup/libtorch/fetch-libtorch.js', import.meta.url).href;
  const code = `const { findPlaces, silent } = await import('${module}');
    const { fetchLibtorch } = await import('${fetchModule}');
    await fetchLibtorch({ places: findPlaces(), env: process.env, progress: silent });`;
  for (const delayMs of [150, 400, 700, 1100, 1600, 2200].map((ms) => ms * (0.7 + 0.6 * Math.random()))) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', code], { env: machine.env, stdio: 'inherit' });
    const ended = new Promise((resolve) => child.once('exit', resolve));
    await Promise.race([sleep(delayMs), ended]);
    child.kill('SIGKILL');
    await ended;
    // Whatever moment it was: either nothing is there, or what is there is whole.
    if (existsSync(join(machine.places.libtorchDir, 'stamp.json')))
      expect(await checkLibtorch(machine.places.libtorchDir, VERSION, true)).toBeNull();
  }
  await fetch();
  expect(await checkLibtorch(machine.places.libtorchDir, VERSION, true)).toBeNull();
  expect(readdirSync(dirname(machine.places.libtorchDir)).filter((name) => /\.(tmp|old|lock)/.test(name))).toEqual([]);
});

test('which wheels go with which CUDA', () => {
  const asked = (cuda: string | null): string[] => cudaWheels(cuda).map(({ requirement }) => requirement);
  expect(asked('13.2')).toEqual(['nvidia-cuda-runtime==13.2.*', 'nvidia-cuda-cupti==13.2.*']);
  expect(asked('12.8')).toEqual(['nvidia-cuda-runtime-cu12==12.8.*', 'nvidia-cuda-cupti-cu12==12.8.*']);
  expect(asked(null)).toEqual([]);
  expect(torchWheel('2.15.0').file.test('torch-2.15.0+cu132-cp311-cp311-manylinux_2_28_riscv.whl')).toBe(false);
  expect(torchWheel('2.15.0').file.test('torch-2x15x0-py3-none-any.whl')).toBe(false);
});

test('the size that pip announces', () => {
  expect(announcedSize('  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (539.1 MB)')).toBe(539.1e6);
  expect(announcedSize('Using cached nvidia_cuda_runtime-13.2.86-py3-none-any.whl (2.3 MB)')).toBe(2.3e6);
  expect(announcedSize('  Downloading torch-2.15.0-cp311-cp311-linux_x86_64.whl.metadata (29 kB)')).toBeNull();
});
