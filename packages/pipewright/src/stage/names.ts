/** @file Names of the whole model for what a stage holds: they are what a parameter is known by, whichever stage has it. */
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { isPlainObject } from '../base/tree.ts';

/** How names in a stage's module become names of the whole model: a table of prefixes, or a function. */
export type StageNames = Readonly<Record<string, string>> | ((name: string) => string);

/** Refuses what is neither a table nor a function. */
export function checkNames(stage: number, names: unknown): void {
  if (names === undefined || typeof names === 'function') return;
  if (isPlainObject(names) && Object.values(names).every((each) => typeof each === 'string')) return;
  throw new PipelineError(
    'BAD_OPTION',
    `PipelineStage ${stage}: names is ${show(names)}; give a table such as { 'blocks.0': 'blocks.4' }, or a function from names to names`,
    { stage },
  );
}

/**
 * The name in the whole model. In a table the longest entry that the name is or begins with counts; the entry '' is for all
 * others.
 */
export function wholeName(names: StageNames | undefined, name: string): string {
  if (names === undefined) return name;
  if (typeof names === 'function') {
    const found: unknown = names(name);
    if (typeof found === 'string' && found !== '') return found;
    throw new PipelineError('BAD_OPTION', `names: the function gave ${show(found)} for '${name}'; return a name`);
  }
  let best: string | null = null;
  for (const key of Object.keys(names))
    if ((key === '' || name === key || name.startsWith(`${key}.`)) && key.length >= (best?.length ?? 0)) best = key;
  if (best === null) return name;
  const rest = best === '' ? name : name.slice(best.length + 1);
  return [names[best]!, rest].filter((part) => part !== '').join('.');
}
