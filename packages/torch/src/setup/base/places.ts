/** @file Where things are: the native sources, the state folder of the project, and what all projects of a user share. */
import { existsSync, readFileSync, realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The libtorch that a set-up fetches: the newer end of the range that the sources are built and tested against. */
export const DEFAULT_TORCH = '2.15.0';
/** Counts up when other files are unpacked than before, so that folders of both kinds can be side by side. */
const SELECTION = 1;

export interface Places {
  /** This package, with `native/` in it. */
  readonly packageDir: string;
  readonly nativeDir: string;
  /** Addons that came with the package, a folder for each platform and libtorch; an installed package has one. */
  readonly prebuiltDir: string;
  /** The git-ignored folder of the project: object files, and which addon the project uses. */
  readonly stateDir: string;
  /** Unpacked libtorch, laid out as in site-packages: `torch/lib`, `nvidia/cu13/lib`. Shared by the user's projects. */
  readonly libtorchDir: string;
  /** Built addons, one folder per key. Shared by the user's projects. */
  readonly addonDir: string;
  /** Object files, kept for the next build of the same sources. */
  readonly buildDir: string;
  /** Guards `buildDir`. */
  readonly lockFile: string;
  /** Downloaded wheels, libtorch and addons of this user. */
  readonly cacheDir: string;
}

/**
 * `PIPEWRIGHT_CACHE` moves what projects share. `PIPEWRIGHT_HOME` moves the state folder, and with it libtorch and the
 * addons, so that a folder of its own holds all but the downloads.
 */
export function findPlaces(env: NodeJS.ProcessEnv = process.env): Places {
  const packageDir = realpathSync(fileURLToPath(new URL('../../..', import.meta.url)));
  const home = env['PIPEWRIGHT_HOME'];
  const stateDir = resolve(home || join(projectRoot(packageDir), '.pipewright'));
  const userCache = env['XDG_CACHE_HOME'] || join(env['HOME'] || homedir(), '.cache');
  const cacheDir = resolve(env['PIPEWRIGHT_CACHE'] || join(userCache, 'pipewright'));
  return {
    packageDir,
    nativeDir: join(packageDir, 'native'),
    prebuiltDir: join(packageDir, 'prebuilt'),
    stateDir,
    libtorchDir: home
      ? join(stateDir, 'libtorch')
      : join(cacheDir, 'libtorch', `${DEFAULT_TORCH}-${process.platform}-${process.arch}-${SELECTION}`),
    addonDir: join(home ? stateDir : cacheDir, 'addon'),
    buildDir: join(stateDir, 'build'),
    lockFile: join(stateDir, 'setup.lock'),
    cacheDir,
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
