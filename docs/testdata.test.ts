/** @file Every file of testdata/ has its origin in testdata/README.md: in a row for it, or for the folder it is in. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './testing/pages.ts';

test('the README of testdata names what is there, and nothing else', () => {
  const folder = join(root, 'testdata');
  const named = [...readFileSync(join(folder, 'README.md'), 'utf8').matchAll(/^\| `([^`]+)` \|/gm)].map(
    ([, name]) => name,
  );
  const there = readdirSync(folder, { withFileTypes: true })
    .filter(({ name }) => name !== 'README.md')
    .map((entry) => (entry.isDirectory() ? `${entry.name}/` : entry.name));
  expect(named.sort()).toEqual(there.sort());
});
