/** @file Unused exports are found; those that a package shows or another file names are not. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { findUnusedExports } from './check-exports.mjs';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'exports-'));
});
afterEach(() => rmSync(root, { recursive: true }));

test('what nobody names is found, what is shown or used is not', () => {
  const files = {
    'packages/a/package.json': '{ "exports": { ".": { "@pipewright/source": "./src/index.ts" } } }',
    'packages/a/src/index.ts': "export * from './shown.ts';\nexport { named } from './some.ts';\n",
    'packages/a/src/shown.ts': 'export function shown() {}\n',
    'packages/a/src/some.ts':
      'export const named = 1;\nexport function unused() {}\nexport class Tested {}\nconst own = 2;\n',
    'packages/a/src/some.test.ts': 'new Tested();\n',
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), text);
  }
  expect(findUnusedExports(root)).toEqual(['packages/a/src/some.ts: unused']);
});
