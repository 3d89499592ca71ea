/** @file Every code that this package throws is one of the list, every one of the list is thrown, and the list is sorted. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { pipelineErrorCodes } from './errors.ts';

/** The codes that stand in the first argument of a constructor of an error, in all source files but tests. */
function thrownIn(folder: string, errors: RegExp): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
    .flatMap((file) => [...readFileSync(join(folder, file), 'utf8').matchAll(errors)])
    .flatMap(([, argument = '']) => [...argument.matchAll(/'([A-Z][A-Z0-9_]+)'/g)])
    .map(([, code]) => code as string);
}

test('the codes thrown are those of the list', () => {
  const folder = fileURLToPath(new URL('..', import.meta.url));
  const direct = thrownIn(folder, /(?:new PipelineError|super|this\.wrong)\(\s*([^,`]*),/g);
  const ofFiles = thrownIn(join(folder, 'pt2'), /(?:pt2Error|this\.error)\(\s*([^,`]*),/g).map((code) => `PT2_${code}`);
  const ofSteps = thrownIn(join(folder, 'runtime'), /const code = ([^;]*);/g);
  expect(direct.length).toBeGreaterThan(300);
  expect([...new Set([...direct, ...ofFiles, ...ofSteps])].sort()).toEqual([...pipelineErrorCodes]);
});
