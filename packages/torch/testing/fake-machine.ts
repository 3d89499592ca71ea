/** @file For tests of the set-up: small wheels, a small libtorch, tiny native sources, a PATH with chosen programs. */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { crc32, deflateRawSync } from 'node:zlib';
import { findPlaces, type Places } from '../src/setup/base/places.ts';
import type { Progress } from '../src/setup/base/progress.ts';
import { which } from '../src/setup/base/toolchain.ts';

/** A folder that is gone after `dispose`. */
export interface FakeMachine {
  readonly root: string;
  readonly env: NodeJS.ProcessEnv;
  readonly places: Places;
  dispose(): void;
}

/** State and cache folders of its own; pip sees only the wheels in `<root>/index`. */
export function fakeMachine(): FakeMachine {
  const root = mkdtempSync(join(tmpdir(), 'pipewright-'));
  const index = join(root, 'index');
  mkdirSync(index);
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    PIPEWRIGHT_HOME: join(root, 'state'),
    PIPEWRIGHT_CACHE: join(root, 'cache'),
    PIP_NO_INDEX: '1',
    PIP_FIND_LINKS: index,
    PIPEWRIGHT_JOBS: '2',
  };
  for (const name of [
    'PIPEWRIGHT_LIBTORCH',
    'PIPEWRIGHT_ADDON',
    'PIPEWRIGHT_PYTHON',
    'PIPEWRIGHT_CUDA_ADDON',
    'CXX',
    'CUDA_HOME',
  ])
    delete env[name];
  // Programs that were started by a process that was killed may still be writing.
  const dispose = (): void => rmSync(root, { recursive: true, force: true, maxRetries: 50, retryDelay: 100 });
  return { root, env, places: findPlaces(env), dispose };
}

/** Remembers what was said. */
export class HeardProgress implements Progress {
  readonly said: string[] = [];
  say(message: string): void {
    this.said.push(message);
  }
  step(): void {}
  end(): void {}
}

/** A PATH folder with links to these programs only. */
export function pathWith(root: string, names: readonly string[]): string {
  const dir = mkdtempSync(join(root, 'bin-'));
  for (const name of names) {
    const program = which(name);
    if (program !== null) symlinkSync(program, join(dir, name));
  }
  return dir;
}

/** A PATH folder with everything that this machine has, except for these programs. */
export function pathWithout(root: string, names: readonly string[]): string {
  const dir = mkdtempSync(join(root, 'bin-'));
  const taken = new Set(names);
  for (const folder of (process.env['PATH'] ?? '').split(delimiter)) {
    if (folder === '' || !existsSync(folder)) continue;
    for (const name of readdirSync(folder)) {
      if (taken.has(name)) continue;
      taken.add(name);
      symlinkSync(join(folder, name), join(dir, name));
    }
  }
  return dir;
}

/** A program that prints what it is told to. */
export function fakeProgram(dir: string, name: string, script: string): void {
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
}

/** What a torch folder looks like from outside: libraries of a few bytes, a header, a version. */
export function fakeTorch(dir: string, version: string): string {
  const files = torchFiles(version);
  for (const [name, text] of Object.entries(files)) {
    const path = join(dir, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
  return join(dir, 'torch');
}

export function torchFiles(version: string): Record<string, string> {
  return {
    'torch/version.py': `__version__ = '${version}'\ndebug = False\ncuda: Optional[str] = '13.2'\n`,
    'torch/include/ATen/ATen.h': '#pragma once\n',
    'torch/include/torch/headeronly/version.h': `#define TORCH_VERSION "${version}"\n`,
    'torch/lib/libtorch_cpu.so': 'cpu'.repeat(700_000),
    'torch/lib/libc10.so': 'c10 __cxx1112basic_string',
    'torch/lib/libgomp.so.1': '',
    'torch/lib/libtorch_cuda.so': 'not for us',
    'torch/lib/libtorch_python.so': 'nor this',
    'torch/functional.py': 'nor that',
  };
}

/** The three wheels that a set-up asks pip for, into the index or straight into the cache. */
export function publishWheels(machine: FakeMachine, version: string, where: 'index' | 'cache' = 'index'): void {
  const index = where === 'index' ? join(machine.root, 'index') : join(machine.places.cacheDir, 'wheels');
  writeWheel(index, { name: 'torch', version, tag: 'py3-none-any', files: torchFiles(version) });
  const tag = 'py3-none-any';
  const runtime = { 'nvidia/cu13/lib/libcudart.so.13': 'cudart', 'nvidia/cu13/include/cuda.h': 'left out' };
  writeWheel(index, { name: 'nvidia_cuda_runtime', version: '13.2.86', tag, files: runtime });
  const cupti = { 'nvidia/cu13/lib/libcupti.so.13': 'cupti', 'nvidia/cu13/lib/libnvperf_host.so': 'left out' };
  writeWheel(index, { name: 'nvidia_cuda_cupti', version: '13.2.86', tag, files: cupti });
}

export interface WheelContents {
  readonly name: string;
  readonly version: string;
  readonly tag: string;
  readonly files: Readonly<Record<string, string>>;
  /** Further lines of METADATA, such as `Requires-Dist: …`. */
  readonly metadata?: string;
  /** RECORD claims the hash of something else for these. */
  readonly lieAbout?: readonly string[];
}

export function writeWheel(dir: string, wheel: WheelContents): string {
  const info = `${wheel.name}-${wheel.version}.dist-info`;
  const files: Record<string, string> = {
    ...wheel.files,
    [`${info}/METADATA`]: `Metadata-Version: 2.1\nName: ${wheel.name.replaceAll('_', '-')}\nVersion: ${wheel.version}\n${wheel.metadata ?? ''}`,
    [`${info}/WHEEL`]: `Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: ${wheel.tag}\n`,
  };
  const record = Object.entries(files).map(([name, text]) => {
    const content = wheel.lieAbout?.includes(name) ? `${text}!` : text;
    return `${name},sha256=${createHash('sha256').update(content).digest('base64url')},${text.length}`;
  });
  files[`${info}/RECORD`] = `${[...record, `${info}/RECORD,,`].join('\n')}\n`;
  const path = join(dir, `${wheel.name}-${wheel.version}-${wheel.tag}.whl`);
  mkdirSync(dir, { recursive: true });
  writeFileSync(path, zip(files));
  return path;
}

/** A zip file; every second entry is stored as it is, the others are deflated. */
export function zip(files: Readonly<Record<string, string>>): Buffer {
  const parts: Buffer[] = [];
  const table: Buffer[] = [];
  let offset = 0;
  for (const [i, [name, text]] of Object.entries(files).entries()) {
    const data = Buffer.from(text);
    const packed = i % 2 === 0 ? deflateRawSync(data) : data;
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(i % 2 === 0 ? 8 : 0, 4);
    common.writeUInt16LE(0x21, 8); // 1 January 1980
    common.writeUInt32LE(crc32(data), 10);
    common.writeUInt32LE(packed.length, 14);
    common.writeUInt32LE(data.length, 18);
    common.writeUInt16LE(Buffer.byteLength(name), 22);
    const local = Buffer.concat([Buffer.from('PK\u0003\u0004'), common, Buffer.from(name), packed]);
    const rest = Buffer.alloc(14);
    rest.writeUInt32LE(offset, 10);
    table.push(Buffer.concat([Buffer.from('PK\u0001\u0002'), Buffer.from([20, 0]), common, rest, Buffer.from(name)]));
    parts.push(local);
    offset += local.length;
  }
  const tableBytes = Buffer.concat(table);
  const end = Buffer.alloc(22);
  end.write('PK\u0005\u0006', 'latin1');
  end.writeUInt16LE(table.length, 8);
  end.writeUInt16LE(table.length, 10);
  end.writeUInt32LE(tableBytes.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, tableBytes, end]);
}

/** Our CMake files over one tiny addon, and libraries that can be linked and loaded. Needs a compiler. */
export function fakeNative(machine: FakeMachine): { places: Places; torchDir: string; source: string } {
  if (process.env['CXX']) machine.env['CXX'] = process.env['CXX'];
  const nativeDir = join(machine.root, 'native');
  const real = fileURLToPath(new URL('../native', import.meta.url));
  mkdirSync(join(nativeDir, 'core'), { recursive: true });
  for (const name of ['CMakeLists.txt', 'libtorch.cmake']) copyFileSync(join(real, name), join(nativeDir, name));
  const source = join(nativeDir, 'core/answer.cc');
  writeFileSync(source, addonSource(42));
  for (let i = 0; i < 3; i++) writeFileSync(join(nativeDir, `core/part${i}.cc`), `int part${i}() { return ${i}; }\n`);
  const torchDir = fakeTorch(join(machine.root, 'site'), '2.15.0+fake');
  const empty = join(machine.root, 'empty.cc');
  writeFileSync(empty, 'int fake() { return 0; }\n');
  const library = join(torchDir, 'lib', 'libtorch_cpu.so');
  const compiler = process.env['CXX'] ?? 'c++';
  const args = ['-shared', '-fPIC', '-nostdlib', '-o', library, empty];
  const { status, stderr } = spawnSync(compiler, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`fakeNative: ${compiler} made no library: ${stderr}`);
  copyFileSync(library, join(torchDir, 'lib', 'libc10.so'));
  return { places: { ...machine.places, nativeDir, prebuiltDir: join(machine.root, 'prebuilt') }, torchDir, source };
}

export function addonSource(answer: number): string {
  return `#include <node_api.h>
NAPI_MODULE_INIT() {
  napi_value value;
  napi_create_uint32(env, ${answer}, &value);
  napi_set_named_property(env, exports, "answer", value);
  return exports;
}
`;
}
