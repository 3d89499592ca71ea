/** @file Which project a package belongs to, and what moves the folders. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { findPlaces, projectRoot } from './places.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'places-'));
});
afterEach(() => rmSync(root, { recursive: true }));

test('installed: the project above the outermost node_modules', () => {
  expect(projectRoot('/home/me/app/node_modules/@pipewright/torch')).toBe('/home/me/app');
  expect(projectRoot('/app/node_modules/a/node_modules/@pipewright/torch')).toBe('/app');
});

test('in a workspace: the folder whose package.json has workspaces', () => {
  const dir = join(root, 'packages/torch');
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, 'package.json'), '{}');
  writeFileSync(join(root, 'package.json'), '{ "workspaces": ["packages/*"] }');
  expect(projectRoot(dir)).toBe(root);
});

test('neither: beside itself', () => {
  expect(projectRoot(join(root, 'alone'))).toBe(join(root, 'alone'));
});

test('PIPEWRIGHT_HOME and PIPEWRIGHT_CACHE', () => {
  const places = findPlaces({ PIPEWRIGHT_HOME: '/state', PIPEWRIGHT_CACHE: '/cache', HOME: '/home/me' });
  expect([places.libtorchDir, places.addonDir, places.cacheDir]).toEqual(['/state/libtorch', '/state/addon', '/cache']);
  const shared = findPlaces({ HOME: '/home/me' });
  expect(shared.cacheDir).toBe('/home/me/.cache/pipewright');
  expect(shared.addonDir).toBe('/home/me/.cache/pipewright/addon');
  expect(dirname(shared.libtorchDir)).toBe('/home/me/.cache/pipewright/libtorch');
  expect(findPlaces({ PIPEWRIGHT_CACHE: '/cache' }).addonDir).toBe('/cache/addon');
});
