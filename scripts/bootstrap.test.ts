/** @file When npm packages have to be installed again, and that scripts and sources share one lock. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { packagesAreCurrent } from './bootstrap.mjs';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'bootstrap-'));
});
afterEach(() => rmSync(root, { recursive: true }));

const left = { version: '1.0.0', integrity: 'sha512-left' };
const elsewhere = { version: '1.0.0', integrity: 'sha512-mac', optional: true };
const wanted = {
  '': {},
  'packages/tool': { bin: { tool: './bin.js' } },
  'node_modules/tool': { link: true },
  'node_modules/left': left,
  'node_modules/only-on-mac': elsewhere,
};

function install(present: object | null): boolean {
  writeFileSync(join(root, 'package-lock.json'), JSON.stringify({ packages: wanted }));
  for (const name of ['left', 'tool', '.bin']) mkdirSync(join(root, 'node_modules', name), { recursive: true });
  for (const path of ['left/package.json', 'tool/package.json', '.bin/tool'])
    writeFileSync(join(root, 'node_modules', path), '');
  if (present !== null)
    writeFileSync(join(root, 'node_modules/.package-lock.json'), JSON.stringify({ packages: present }));
  return packagesAreCurrent(root);
}

const current = { 'node_modules/left': left, 'node_modules/tool': { link: true } };

test('what the lock asks for is there', () => {
  expect(install(current)).toBe(true);
});

test.each([
  ['an install that did not finish', null],
  ['another version', { ...current, 'node_modules/left': { ...left, version: '0.9.0' } }],
  ['another content', { ...current, 'node_modules/left': { ...left, integrity: 'sha512-other' } }],
  ['a missing package', { 'node_modules/tool': { link: true } }],
])('%s is not current', (_, present) => {
  expect(install(present)).toBe(false);
});

test.each(['left/package.json', '.bin/tool'])('%s deleted by hand is noticed', (path) => {
  install(current);
  rmSync(join(root, 'node_modules', path));
  expect(packagesAreCurrent(root)).toBe(false);
});
