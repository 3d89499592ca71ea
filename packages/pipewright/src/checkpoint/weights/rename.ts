/** @file Names in weight files of other programs: what a parameter is called there, and whether it is stored transposed. */
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';
import { wholeName } from '../../stage/names.ts';

/** A parameter in a weight file of another program. */
export interface RenamedTensor {
  readonly name: string;
  /** Whether it is stored transposed. */
  readonly transpose?: boolean | undefined;
}

/**
 * From names of the model to names in the files: a table of prefixes, or a function. Null means that the files do not have the
 * parameter and its value stays.
 */
export type Rename = Readonly<Record<string, string>> | ((name: string) => string | RenamedTensor | null);

/** What a parameter is called in the files; null where they do not have it. */
export function renamed(where: string, rename: Rename | undefined, name: string): RenamedTensor | null {
  if (rename === undefined) return { name };
  if (typeof rename !== 'function') {
    if (isPlainObject(rename) && Object.values(rename).every((each) => typeof each === 'string'))
      return { name: wholeName(rename as Record<string, string>, name) };
    throw new PipelineError(
      'BAD_OPTION',
      `${where}: rename is ${show(rename)}; give a table such as { blocks: 'model.layers' }, or a function`,
    );
  }
  const found: unknown = rename(name);
  if (found === null) return null;
  if (typeof found === 'string') return { name: found };
  if (isPlainObject(found) && typeof (found as { name?: unknown }).name === 'string')
    return found as unknown as RenamedTensor;
  throw new PipelineError(
    'BAD_OPTION',
    `${where}: rename gave ${show(found)} for '${name}'; return a name, { name, transpose: true }, or null`,
  );
}
