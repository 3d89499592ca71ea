/** @file Finds libtorch: `PIPEWRIGHT_LIBTORCH`, then the one that a set-up has fetched, then an importable Python `torch`. */
import { existsSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import type { Places } from '../base/places.ts';
import { findPython, query } from '../base/toolchain.ts';

export interface Libtorch {
  /** The folder with `include/` and `lib/`. */
  readonly dir: string;
  readonly source: LibtorchSource;
  /** As the library calls itself, for example `2.15.0+cu132`. */
  readonly version: string;
  /** The CUDA version it was built for, or null. */
  readonly cudaVersion: string | null;
  /** Whether `libtorch_cuda.so` is there, so that a GPU can be used. */
  readonly hasCuda: boolean;
}

export type LibtorchSource = 'PIPEWRIGHT_LIBTORCH' | 'set-up' | 'python';

export interface Tried {
  readonly source: LibtorchSource;
  readonly path: string;
  readonly problem: string;
}

export interface FindResult {
  readonly found: Libtorch | null;
  /** The places that did not do, and why, in the order of the search. */
  readonly tried: readonly Tried[];
}

/** The older end of the range that the sources are built and tested against; `DEFAULT_TORCH` is the newer one. */
const OLDEST_TORCH = '2.11.0';

/** Written last into the folder of a set-up: without it the folder is half-made. */
export const STAMP_FILE = 'stamp.json';

export interface FindOptions {
  readonly env?: NodeJS.ProcessEnv;
  /** Asking Python takes tens of milliseconds; the loader leaves it out. */
  readonly python?: boolean;
}

export function findLibtorch(places: Places, options: FindOptions = {}): FindResult {
  const env = options.env ?? process.env;
  const tried: Tried[] = [];
  const explicit = env['PIPEWRIGHT_LIBTORCH'];
  // What the user set must do: falling through to another library would hide the mistake.
  if (explicit) return look('PIPEWRIGHT_LIBTORCH', resolve(explicit), tried);

  if (!existsSync(places.libtorchDir)) {
    tried.push({ source: 'set-up', path: places.libtorchDir, problem: 'not there' });
  } else if (!existsSync(join(places.libtorchDir, STAMP_FILE))) {
    tried.push({ source: 'set-up', path: places.libtorchDir, problem: 'not finished' });
  } else {
    const result = look('set-up', places.libtorchDir, tried);
    if (result.found) return result;
  }

  if (options.python === false) return { found: null, tried };
  const python = pythonTorchDir(env);
  if (python.dir === null) {
    tried.push({ source: 'python', path: python.command, problem: 'no importable torch' });
    return { found: null, tried };
  }
  return look('python', python.dir, tried);
}

/** What is in `path`, the torch folder itself or the folder that has it; or why it will not do. */
export function describeLibtorch(source: LibtorchSource, path: string): Libtorch | string {
  const dir = [path, join(path, 'torch')].find((d) => existsSync(join(d, 'lib', libraryName('torch_cpu'))));
  if (dir === undefined) return `no lib/${libraryName('torch_cpu')} in it`;
  // A set-up fetches the headers when there is something to compile.
  if (source !== 'set-up' && !existsSync(join(dir, 'include', 'ATen'))) return 'no include/ATen in it';
  const { version, cudaVersion } = readVersion(dir);
  if (version === null) return 'no version in version.py or version.h';
  if (compareVersions(version, OLDEST_TORCH) < 0) return `version ${version}, but ${OLDEST_TORCH} or later is needed`;
  return {
    dir: realpathSync(dir),
    source,
    version,
    cudaVersion,
    hasCuda: existsSync(join(dir, 'lib', libraryName('torch_cuda'))),
  };
}

export function libraryName(name: string): string {
  return process.platform === 'darwin' ? `lib${name}.dylib` : `lib${name}.so`;
}

/** Numeric comparison of the dotted part: `2.9.1` is before `2.15.0+cu132`. */
export function compareVersions(a: string, b: string): number {
  const parts = (v: string): number[] => (/^[\d.]+/.exec(v)?.[0] ?? '').split('.').map(Number);
  const [pa, pb] = [parts(a), parts(b)];
  for (let i = 0; i < Math.max(pa.length, pb.length); i++) {
    const difference = (pa[i] ?? 0) - (pb[i] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** A wheel has version.py; the zip of libtorch has only a header and `build-version`. */
export function readVersion(dir: string): { version: string | null; cudaVersion: string | null } {
  const python = readIfThere(join(dir, 'version.py'));
  if (python !== null) return parseVersionPy(python);
  for (const header of ['torch/headeronly/version.h', 'torch/csrc/api/include/torch/version.h']) {
    const text = readIfThere(join(dir, 'include', header));
    const version = text === null ? undefined : /define TORCH_VERSION "([^"]+)"/.exec(text)?.[1];
    if (version) return { version: readIfThere(join(dir, 'build-version'))?.trim() || version, cudaVersion: null };
  }
  return { version: null, cudaVersion: null };
}

export function parseVersionPy(text: string): { version: string | null; cudaVersion: string | null } {
  return {
    version: /^__version__ *= *['"]([^'"]+)['"]/m.exec(text)?.[1] ?? null,
    cudaVersion: /^cuda\b[^=\n]*= *['"]([^'"]+)['"]/m.exec(text)?.[1] ?? null,
  };
}

/** Folders beside torch that NVIDIA's wheels fill, for example `nvidia/cu13`, with `include/` or `lib/` in them. */
export function nvidiaFolders(libtorch: Pick<Libtorch, 'dir'>): string[] {
  const parent = join(dirname(libtorch.dir), 'nvidia');
  if (!existsSync(parent)) return [];
  return readdirSync(parent)
    .map((name) => join(parent, name))
    .filter((dir) => statSync(dir).isDirectory())
    .sort();
}

/** One paragraph for an error or a report: what was looked at and what was wrong with it. */
export function formatTried(tried: readonly Tried[]): string {
  return tried.map(({ source, path, problem }) => `  looked at ${source}: ${path}: ${problem}`).join('\n');
}

function look(source: LibtorchSource, path: string, tried: Tried[]): FindResult {
  const description = describeLibtorch(source, path);
  if (typeof description !== 'string') return { found: description, tried };
  return { found: null, tried: [...tried, { source, path, problem: description }] };
}

/** Where Python would import torch from, without importing it. */
function pythonTorchDir(env: NodeJS.ProcessEnv): { dir: string | null; command: string } {
  const python = findPython(env);
  if (python === null) return { dir: null, command: 'python3' };
  const code =
    'import importlib.util as u; s = u.find_spec("torch"); print(list(s.submodule_search_locations)[0] if s and s.origin else "")';
  const dir = query(python.path, ['-c', code], env)?.trim();
  return { dir: dir || null, command: python.path };
}

function readIfThere(path: string): string | null {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}
