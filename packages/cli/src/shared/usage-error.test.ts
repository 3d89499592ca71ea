/** @file Every code of the command's own errors is one of the list. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { cliErrorCodes } from './usage-error.ts';

test('the codes of the errors are those of the list', () => {
  const folder = fileURLToPath(new URL('..', import.meta.url));
  const codes = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
    .flatMap((file) => [...readFileSync(join(folder, file), 'utf8').matchAll(/readonly code\b[^=\n]*= '([A-Z_]+)'/g)])
    .map(([, code]) => code as string);
  expect(codes.sort()).toEqual([...cliErrorCodes]);
});
