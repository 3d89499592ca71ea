/** @file Every code that is thrown, in C++ and in TypeScript, is one of the list, and the list is sorted. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { torchErrorCodes } from './errors.ts';

test('codes of the C++ side are in the list', () => {
  const folder = fileURLToPath(new URL('../../native', import.meta.url));
  const thrown = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.(cc|h)$/.test(file))
    .flatMap((file) => [...readFileSync(join(folder, file), 'utf8').matchAll(/(?:CodedError|report)\("([A-Z_]+)"/g)])
    .map(([, code]) => code as string);
  expect(thrown.length).toBeGreaterThan(50);
  expect(thrown.filter((code) => !(torchErrorCodes as readonly string[]).includes(code))).toEqual([]);
});

test('codes of the TypeScript side are in the list', () => {
  const folder = fileURLToPath(new URL('..', import.meta.url));
  const thrown = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
    .flatMap((file) => [
      ...readFileSync(join(folder, file), 'utf8').matchAll(/new \w*Error\(\s*([^,`]*),|readonly code = ([^;]*);/g),
    ])
    .flatMap(([, argument = '', field = '']) => [...`${argument}${field}`.matchAll(/'([A-Z][A-Z0-9_]+)'/g)])
    .map(([, code]) => code as string);
  expect(thrown.length).toBeGreaterThan(300);
  expect(thrown.filter((code) => !(torchErrorCodes as readonly string[]).includes(code))).toEqual([]);
});

test('the list has each code once, in order', () => {
  expect([...new Set(torchErrorCodes)].sort()).toEqual([...torchErrorCodes]);
});
