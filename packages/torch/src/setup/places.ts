/** @file Where things are: the state folder of the project, the native sources, the cache of downloads. */
import { existsSync, readFileSync, realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface Places {
  /** This package, with `native/` in it. */
  readonly packageDir: string;
  readonly nativeDir: string;
  /** The git-ignored folder of the project that our set-up fills. */
  readonly stateDir: string;
  /** Unpacked libtorch, laid out as in site-packages: `torch/lib`, `nvidia/cu13/lib`. */
  readonly libtorchDir: string;
  /** Built addons, one folder per key. */
  readonly addonDir: string;
  /** Object files, kept for the next build. */
  readonly buildDir: string;
  /** Half-made things; only the holder of `lockFile` touches it. */
  readonly tempDir: string;
  readonly lockFile: string;
  /** Downloaded wheels, shared by all projects of this user. */
  readonly cacheDir: string;
}

/** `PIPEWRIGHT_HOME` moves the state folder, `PIPEWRIGHT_CACHE` the downloads. */
export function findPlaces(env: NodeJS.ProcessEnv = process.env): Places {
  const packageDir = realpathSync(fileURLToPath(new URL('../..', import.meta.url)));
  const stateDir = resolve(env['PIPEWRIGHT_HOME'] || join(projectRoot(packageDir), '.pipewright'));
  const userCache = env['XDG_CACHE_HOME'] || join(env['HOME'] || homedir(), '.cache');
  return {
    packageDir,
    nativeDir: join(packageDir, 'native'),
    stateDir,
    libtorchDir: join(stateDir, 'libtorch'),
    addonDir: join(stateDir, 'addon'),
    buildDir: join(stateDir, 'build'),
    tempDir: join(stateDir, 'tmp'),
    lockFile: join(stateDir, 'setup.lock'),
    cacheDir: resolve(env['PIPEWRIGHT_CACHE'] || join(userCache, 'pipewright')),
  };
}

/** The headers of Node-API, an npm package. */
export function nodeApiInclude(places: Places): string {
  const require = createRequire(join(places.packageDir, 'package.json'));
  return join(dirname(require.resolve('node-api-headers/package.json')), 'include');
}

/**
 * The project a package belongs to: what is above its outermost node_modules, or the workspace it is a part of.
 * A package that is neither keeps its state beside itself.
 */
export function projectRoot(packageDir: string): string {
  const marker = `${sep}node_modules${sep}`;
  const at = packageDir.indexOf(marker);
  if (at >= 0) return packageDir.slice(0, at) || sep;
  for (let dir = dirname(packageDir); dir !== dirname(dir); dir = dirname(dir)) {
    const manifest = join(dir, 'package.json');
    if (existsSync(manifest) && 'workspaces' in (JSON.parse(readFileSync(manifest, 'utf8')) as object)) return dir;
  }
  return packageDir;
}
