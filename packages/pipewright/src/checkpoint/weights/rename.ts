/** @file Names in files of others: how a parameter is called there, and whether it lies transposed. */
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';
import { wholeName } from '../../stage/names.ts';

/** A parameter in a file of others. */
export interface RenamedTensor {
  readonly name: string;
  /** Whether it lies there with its two dimensions exchanged. */
  readonly transpose?: boolean | undefined;
}

/**
 * From names of the model to names in the files: a table of beginnings, or a function; null means that the files do not have it and
 * the value stays.
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
