/** @file What an addon was built from. The same key means the same addon; anything else means a new build. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import type { Places } from '../base/places.ts';
import type { Tool } from '../base/toolchain.ts';
import { type Libtorch, libraryName } from '../libtorch/find-libtorch.ts';

const NODE_API_VERSION = 9;

/** Everything that the binary depends on. */
export interface AddonKey {
  readonly libtorchDir: string;
  readonly libtorchVersion: string;
  /** Size of the library: a rebuilt torch of the same version is another one. */
  readonly libtorchBytes: number;
  readonly sources: string;
  readonly compiler: string;
  /** What the environment adds to the compiler's and the linker's flags. */
  readonly flags: string;
  readonly nodeApi: number;
  readonly platform: string;
}

/** Kept beside a built addon; the loader picks an addon by it. */
export interface AddonStamp {
  readonly key: AddonKey;
  /** Where libtorch was found, to find it again without asking Python. */
  readonly libtorchSource: string;
  /** Why there is no CUDA addon beside this one; null where there is one. */
  readonly withoutCuda: string | null;
  readonly builtAt: string;
  /** The folder of the sources it was built from; older addons have none. */
  readonly builtFrom?: string;
}

export interface BuiltAddon {
  readonly dir: string;
  readonly stamp: AddonStamp;
}

export const ADDON_FILE = 'pipewright.node';
export const CUDA_ADDON_FILE = 'pipewright_cuda.node';
const ADDON_STAMP_FILE = 'stamp.json';
/** The link beside an addon through which the loader of the system finds libtorch. */
export const LIBTORCH_LINK = 'libtorch';
/** Names in the folder of addons that are half-made things or locks. */
export const HIDDEN = '.';

export function libtorchKey(
  libtorch: Pick<Libtorch, 'dir' | 'version'>,
): Pick<AddonKey, 'libtorchDir' | 'libtorchVersion' | 'libtorchBytes'> {
  return {
    libtorchDir: libtorch.dir,
    libtorchVersion: libtorch.version,
    libtorchBytes: statSync(join(libtorch.dir, 'lib', libraryName('torch_cpu'))).size,
  };
}

export interface Compiler {
  readonly tool: Tool;
  readonly env: NodeJS.ProcessEnv;
}

export function addonKey(places: Places, libtorch: Libtorch, { tool, env }: Compiler): AddonKey {
  return {
    ...libtorchKey(libtorch),
    sources: hashSources(places.nativeDir),
    compiler: `${tool.path} ${tool.version}`,
    flags: ['CXXFLAGS', 'LDFLAGS'].map((name) => env[name] ?? '').join('|'),
    nodeApi: NODE_API_VERSION,
    platform: `${process.platform}-${process.arch}`,
  };
}

/** The folder name of a key. */
export function keyName(key: AddonKey): string {
  return hashText(JSON.stringify(Object.entries(key).sort(([a], [b]) => (a < b ? -1 : 1)))).slice(0, 16);
}

/** All files below the native folder, names and contents. */
export function hashSources(nativeDir: string): string {
  const hash = createHash('sha256');
  for (const name of listFiles(nativeDir)) {
    const bytes = readFileSync(join(nativeDir, name));
    hash.update(`${name}\0${bytes.length}\0`).update(bytes);
  }
  return hash.digest('hex');
}

export interface ListedAddon extends BuiltAddon {
  readonly usedMs: number;
}

/** Finished addons, the one last built or wanted first. */
export function listAddons(addonDir: string): ListedAddon[] {
  let names: string[] = [];
  try {
    names = readdirSync(addonDir);
  } catch {
    return [];
  }
  return names
    .filter((name) => !name.startsWith(HIDDEN))
    .map((name) => readAddon(join(addonDir, name)))
    .filter((addon) => addon !== null)
    .sort((a, b) => b.usedMs - a.usedMs);
}

/** Keeps it from being removed as an old one, and makes it the first of the list. */
export function markUsed(addon: BuiltAddon): void {
  const now = new Date();
  try {
    utimesSync(addonStampFile(addon.dir), now, now);
  } catch {
    // The folder of another user, or a disk that is read only.
  }
}

export function addonStampFile(dir: string): string {
  return join(dir, ADDON_STAMP_FILE);
}

function readAddon(dir: string): ListedAddon | null {
  try {
    const stamp = JSON.parse(readFileSync(addonStampFile(dir), 'utf8')) as AddonStamp;
    statSync(join(dir, ADDON_FILE));
    return { dir, stamp, usedMs: statSync(addonStampFile(dir)).mtimeMs };
  } catch {
    return null;
  }
}

function listFiles(dir: string): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(dir.length + 1))
    .sort();
}

function hashText(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
