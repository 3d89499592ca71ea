/**
 * @file Which native files are being edited. All are compiled together, folder by folder, which is twice as quick; a file that
 * has changed since then is compiled by itself from there on, so that the next edit costs one file.
 */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const TOGETHER_FILE = 'together.json';

/** The files to compile by themselves, for example `core/op.cc`. Notes in `dir` what was first compiled together. */
export function editedSources(nativeDir: string, dir: string): string[] {
  const now = hashFiles(nativeDir);
  const file = join(dir, TOGETHER_FILE);
  const then = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Record<string, string>) : null;
  const names = Object.keys(now);
  const edited = then === null ? [] : names.filter((name) => now[name] !== then[name]);
  // Another branch, or other settings of the build, are not an edit: everything is compiled together again.
  const recipeChanged = edited.some((name) => !name.endsWith('.cc'));
  if (then !== null && !recipeChanged && edited.length <= names.length / 3) return edited;
  writeFileSync(file, JSON.stringify(now));
  return [];
}

function hashFiles(nativeDir: string): Record<string, string> {
  const names = readdirSync(nativeDir, { recursive: true, encoding: 'utf8' }).filter((name) =>
    /\.(cc|cmake)$|CMakeLists\.txt$/.test(name),
  );
  return Object.fromEntries(
    names.sort().map((name) => [
      name,
      createHash('sha256')
        .update(readFileSync(join(nativeDir, name)))
        .digest('hex'),
    ]),
  );
}
