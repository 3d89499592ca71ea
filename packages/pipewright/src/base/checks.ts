/** @file Checks of what users pass in: options, counts, words. */
import { isRecord, nearest } from '@pipewright/schedule/internal';
import { PipelineError } from './errors.ts';

/** Refuses options that do not exist, by name, with the near miss. @example checkOptions('launch', { rank: 4 }, ['ranks']) */
export function checkOptions(where: string, options: object | undefined, known: readonly string[]): void {
  if (options !== undefined && !isRecord(options))
    throw new PipelineError(
      'BAD_OPTION',
      `${where}: the options are ${show(options)}; give an object of ${known.join(', ')}`,
    );
  for (const key of Object.keys(options ?? {})) {
    if (known.includes(key)) continue;
    throw new PipelineError(
      'UNKNOWN_OPTION',
      `${where}: unknown option '${key}'${didYouMean(key, known)}; it takes ${known.join(', ')}`,
      { option: key, known },
    );
  }
}

/** As `checkOptions`, for options of which some are required. @example checkRequired('TokenDataset', options, ['length', 'stride']) */
export function checkRequired(where: string, options: object, known: readonly string[]): void {
  checkArgument(
    where,
    (options as unknown) !== undefined,
    ['the options', options],
    `an object of ${known.join(', ')}`,
  );
  checkOptions(where, options, known);
}

/** Refuses what is not the path of a file or folder. @example checkPath('hasCheckpoint', 'the folder', folder) */
export function checkPath(where: string, name: string, path: unknown): void {
  checkArgument(where, typeof path === 'string' && path !== '', [name, path], 'its path as a string');
}

/** Refuses a number that is not whole or below `least`. @example checkCount('launch', 'ranks', 0) // at least 1 */
export function checkCount(where: string, name: string, value: unknown, least = 1): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= least) return value;
  const rule = `give a whole number of at least ${least}`;
  throw new PipelineError('BAD_OPTION', `${where}: ${name} is ${show(value)}; ${rule}`, { option: name, value });
}

/** Refuses a word that is not one of a list. @example checkChoice('launch', 'mode', 'thread', ['threads', 'processes']) */
export function checkChoice<T extends string>(where: string, name: string, value: unknown, choices: readonly T[]): T {
  if (choices.includes(value as T)) return value as T;
  const near = typeof value === 'string' ? didYouMean(value, choices) : '';
  const rule = `give ${choices.map((choice) => `'${choice}'`).join(' or ')}`;
  throw new PipelineError('BAD_OPTION', `${where}: ${name} is ${show(value)}${near}; ${rule}`, { option: name, value });
}

/** Refuses a value that is not what a function takes. @example checkArgument('scale', x > 0, ['the factor', x], 'a positive number') */
export function checkArgument(
  where: string,
  isRight: boolean,
  [name, value]: readonly [string, unknown],
  rule: string,
): void {
  if (!isRight)
    throw new PipelineError('BAD_ARGUMENT', `${where}: ${name} is ${show(value)}; give ${rule}`, { argument: name });
}

/** Whether a value is a group of ranks. */
export function isGroup(value: unknown): boolean {
  const { rank, size, allReduce } = Object(value) as { readonly [name in 'rank' | 'size' | 'allReduce']?: unknown };
  return Number.isInteger(rank) && Number.isInteger(size) && typeof allReduce === 'function';
}

/** The near miss among `names` as ` (did you mean 'x'?)`, or nothing. @example didYouMean('rank', ['ranks']) */
export function didYouMean(word: string, names: Iterable<string>): string {
  const near = nearest(word, names);
  return near === undefined ? '' : ` (did you mean '${near}'?)`;
}

/** A value as it may stand in a message. @example show([1, 2]) // 'an array of 2' */
export function show(value: unknown): string {
  if (typeof value === 'string') return `'${value.length > 60 ? `${value.slice(0, 57)}...` : value}'`;
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'function') return value.name === '' ? 'a function' : `the function ${value.name}`;
  if (typeof value !== 'object' || value === null) return String(value);
  const prototype = Object.getPrototypeOf(value) as { constructor?: { name?: string } } | null;
  const name = prototype?.constructor?.name ?? 'Object';
  return name === 'Object' ? `an object with ${Object.keys(value).join(', ') || 'nothing in it'}` : `a ${name}`;
}
