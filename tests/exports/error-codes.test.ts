/** @file Every error code that a package throws is one of its list, and the lists are sorted; where codes are literals, every one listed is thrown. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { cliErrorCodes } from '../../packages/cli/src/shared/usage-error.ts';
import { pipelineErrorCodes } from '../../packages/pipewright/src/base/errors.ts';
import { scheduleErrorCodes } from '../../packages/schedule/src/model/errors.ts';
import { torchErrorCodes } from '../../packages/torch/src/base/errors.ts';

const packages = fileURLToPath(new URL('../../packages', import.meta.url));

/** The quoted codes in what a pattern captures, in all source files of a folder but tests. */
function codesIn(folder: string, pattern: RegExp): string[] {
  return readdirSync(join(packages, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.(ts|cc|h)$/.test(file) && !file.endsWith('.test.ts'))
    .flatMap((file) => [...readFileSync(join(packages, folder, file), 'utf8').matchAll(pattern)])
    .flatMap((found) => [
      ...found
        .slice(1)
        .join()
        .matchAll(/['"]([A-Z][A-Z0-9_]+)['"]/g),
    ])
    .map(([, code]) => code as string);
}

const inOrder = (codes: readonly string[]): string[] => [...new Set(codes)].sort();

test('schedule', () => {
  const thrown = codesIn('schedule/src', /new ScheduleError\(\s*([^,]*),/g);
  expect(thrown.length).toBeGreaterThan(90);
  expect(inOrder(thrown)).toEqual([...scheduleErrorCodes]);
});

test('torch, in TypeScript and in C++', () => {
  const typescript = codesIn('torch/src', /new \w*Error\(\s*([^,`]*),|readonly code = ([^;]*);/g);
  const native = codesIn('torch/native', /(?:CodedError|report)\(("[A-Z_]+")/g);
  expect(typescript.length).toBeGreaterThan(300);
  expect(native.length).toBeGreaterThan(50);
  const listed: readonly string[] = torchErrorCodes;
  expect([...typescript, ...native].filter((code) => !listed.includes(code))).toEqual([]);
  expect(inOrder(torchErrorCodes)).toEqual([...torchErrorCodes]);
});

test('pipewright', () => {
  const direct = codesIn(
    'pipewright/src',
    /(?:new PipelineError|super|this\.wrong|passedCode|failedSave|found)\(\s*([^,`]*),/g,
  );
  const ofFiles = codesIn('pipewright/src/pt2', /(?:pt2Error|this\.error)\(\s*([^,`]*),/g);
  const ofSteps = codesIn('pipewright/src/runtime', /const code = ([^;]*);/g);
  expect(direct.length).toBeGreaterThan(300);
  expect(inOrder([...direct, ...ofFiles.map((code) => `PT2_${code}`), ...ofSteps])).toEqual([...pipelineErrorCodes]);
});

test('cli', () => {
  expect(inOrder(codesIn('cli/src', /readonly code\b[^=\n]*= ('[A-Z_]+')/g))).toEqual([...cliErrorCodes]);
});
