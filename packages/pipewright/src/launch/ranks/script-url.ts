/** @file The script that ranks run, as a URL that exists. */
import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';

/** Checks that a script is there. Paths are relative to the folder one is in. */
export function scriptUrl(where: string, script: string | URL): string {
  const isUrl = script instanceof URL || (typeof script === 'string' && script.startsWith('file:'));
  if (!isUrl && (typeof script !== 'string' || script === ''))
    throw new PipelineError('BAD_OPTION', `${where}: script is ${show(script)}; give a path or a URL`);
  const url = isUrl ? new URL(script) : pathToFileURL(resolve(script));
  if (url.protocol !== 'file:')
    throw new PipelineError('BAD_OPTION', `${where}: script is ${url.href}; give a file of this machine`);
  const file = fileURLToPath(url);
  if (statSync(file, { throwIfNoEntry: false })?.isFile() === true) return url.href;
  throw new PipelineError('NO_SCRIPT', `${where}: there is no file ${file}; check the path of the script`);
}
