/** @file Entries of the lock file without a hash are refused, but for optional packages of other platforms. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { withoutIntegrity } from './generate-lock-entries.mjs';

test('an entry without integrity is found unless it is an optional package of a platform', () => {
  const platform = { optional: true, cpu: ['arm64'] };
  const packages = {
    '': {},
    'packages/torch': {},
    'node_modules/@pipewright/torch': { link: true },
    'node_modules/good': { integrity: 'sha512-x' },
    'node_modules/@rolldown/binding-darwin-arm64': platform,
    'node_modules/bare': {},
    'node_modules/good/node_modules/inner': {},
    'node_modules/other-darwin-arm64': platform,
    'node_modules/@biomejs/cli-darwin-arm64': { cpu: ['arm64'] },
    'node_modules/@biomejs/cli-any': { optional: true },
  };
  expect(withoutIntegrity({ packages })).toEqual([
    'node_modules/bare',
    'node_modules/good/node_modules/inner',
    'node_modules/other-darwin-arm64',
    'node_modules/@biomejs/cli-darwin-arm64',
    'node_modules/@biomejs/cli-any',
  ]);
});

test('the lock file of the project has no such entry, and one whose hash is taken away is found', () => {
  const lock = JSON.parse(readFileSync(new URL('../package-lock.json', import.meta.url), 'utf8'));
  expect(withoutIntegrity(lock)).toEqual([]);
  delete lock.packages['node_modules/vitest'].integrity;
  expect(withoutIntegrity(lock)).toEqual(['node_modules/vitest']);
});
