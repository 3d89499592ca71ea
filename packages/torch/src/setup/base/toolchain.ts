/** @file The programs of the machine that the set-up uses: Python, compiler, CMake, Ninja or make. */
import { spawnSync } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { delimiter, isAbsolute, join } from 'node:path';

export interface Tool {
  readonly path: string;
  /** The first line of what it says about itself. */
  readonly version: string;
}

/** Where a shell would find the program, or null. */
export function which(name: string, env: NodeJS.ProcessEnv = process.env): string | null {
  const candidates = isAbsolute(name)
    ? [name]
    : (env['PATH'] ?? '').split(delimiter).map((dir) => (dir === '' ? name : join(dir, name)));
  return candidates.find(isExecutable) ?? null;
}

/** What the program prints, or null if it fails; never throws. */
export function query(command: string, args: readonly string[], env: NodeJS.ProcessEnv = process.env): string | null {
  const result = spawnSync(command, args, {
    env,
    encoding: 'utf8',
    timeout: 20_000,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  return result.status === 0 ? result.stdout : null;
}

/** `PIPEWRIGHT_PYTHON` goes first. */
export function findPython(env: NodeJS.ProcessEnv = process.env): Tool | null {
  return firstTool([env['PIPEWRIGHT_PYTHON'], 'python3', 'python'], env, (text) => /^Python 3\./.test(text));
}

/** `CXX` goes first, as in CMake. */
export function findCompiler(env: NodeJS.ProcessEnv = process.env): Tool | null {
  return firstTool([env['CXX'], 'c++', 'g++', 'clang++'], env);
}

export function findCmake(env: NodeJS.ProcessEnv = process.env): Tool | null {
  return firstTool(['cmake'], env);
}

/** Ninja where it is, else make; both build the same. */
export function findBuilder(env: NodeJS.ProcessEnv = process.env): (Tool & { readonly generator: string }) | null {
  const ninja = firstTool(['ninja', 'ninja-build'], env);
  if (ninja) return { ...ninja, generator: 'Ninja' };
  const make = firstTool(['make', 'gmake'], env);
  return make && { ...make, generator: 'Unix Makefiles' };
}

/** pip of that Python, as `pip 24.0`, or null. */
export function findPip(python: Tool, env: NodeJS.ProcessEnv = process.env): string | null {
  const text = query(python.path, ['-m', 'pip', '--version'], env);
  return text === null ? null : (/^pip \S+/.exec(text)?.[0] ?? null);
}

function firstTool(
  names: readonly (string | undefined)[],
  env: NodeJS.ProcessEnv,
  accept: (version: string) => boolean = () => true,
): Tool | null {
  for (const name of names) {
    const path = name ? which(name, env) : null;
    const version = path === null ? null : query(path, ['--version'], env)?.split('\n')[0]?.trim();
    if (path !== null && version && accept(version)) return { path, version };
  }
  return null;
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}
