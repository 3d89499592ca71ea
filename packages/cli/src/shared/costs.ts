/** @file What actions cost, from flags and from a file. */
import type { Costs } from '@pipewright/schedule';
import type { CostFlags } from './flags.ts';
import { readText } from './source.ts';
import { UsageError } from './usage-error.ts';

const costFlags = [
  'F',
  'I',
  'W',
  'B',
  'comm',
  'overlap',
  'activation',
  'retained',
  'weightGradient',
  'parameters',
] as const;

/** Costs from a file, with single flags taking precedence; undefined if none was given. */
export function readCosts(flags: CostFlags): Costs | undefined {
  const given: Record<string, unknown> = {};
  for (const name of costFlags) if (flags[name] !== undefined) given[name] = flags[name];
  if (flags.costs === undefined) return Object.keys(given).length === 0 ? undefined : (given as Costs);
  const text = readText(flags.costs);
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new UsageError(
      `--costs ${flags.costs} is not JSON (${(error as Error).message}); write for example { "F": 1, "I": 1, "W": 1, "comm": 0.1 }`,
    );
  }
  if (typeof file !== 'object' || file === null || Array.isArray(file)) {
    throw new UsageError(`--costs ${flags.costs} must hold an object such as { "F": 1, "I": 1, "W": 1, "comm": 0.1 }`);
  }
  return { ...file, ...given } as Costs;
}
