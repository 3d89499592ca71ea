/** @file What was measured before: a file for each model, size and machine, so that nothing is measured twice. */
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, homedir } from 'node:os';
import { join } from 'node:path';
import type { GraphProgram } from 'pipewright';

/** What measurements depend on besides the graph. */
export interface CacheKey {
  readonly sizes: Readonly<Record<string, number>>;
  readonly ranks: number;
  readonly cores: number;
  readonly rounds: number;
  readonly what: unknown;
}

/** The name of the measurements of a graph: the same for the same operators, shapes, machine and ways of measuring. */
export function cacheName(program: GraphProgram, key: CacheKey): string {
  const state = [...program.state].map(([name, tensor]) => [name, tensor.dtype, tensor.shape, String(tensor.device)]);
  const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  const machine = [cpus()[0]?.model, cpus().length, process.arch, version];
  const text = JSON.stringify([2, program.graph, state, machine, key]);
  return `${createHash('sha256').update(text).digest('hex').slice(0, 32)}.json`;
}

/** The folder of the files. */
function folder(env: NodeJS.ProcessEnv = process.env): string {
  return join(env['XDG_CACHE_HOME'] || join(env['HOME'] || homedir(), '.cache'), 'pipewright', 'plans');
}

/** What a file holds; null where there is none, or it cannot be read. */
export function readCache(name: string): unknown {
  try {
    return JSON.parse(readFileSync(join(folder(), name), 'utf8'));
  } catch {
    return null;
  }
}

/** Keeps measurements; a folder that cannot be written is no reason to stop. */
export function writeCache(name: string, value: unknown): void {
  try {
    mkdirSync(folder(), { recursive: true });
    writeFileSync(join(folder(), name), JSON.stringify(value));
  } catch {
    // measured again next time
  }
}
