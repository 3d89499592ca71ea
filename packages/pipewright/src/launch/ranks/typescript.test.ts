/** @file TypeScript without types: what Node 20 imports in its place, and errors that name the file. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { load } from './typescript-hooks.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'pipewright-types-'));
  vi.stubEnv('PIPEWRIGHT_CACHE', join(folder, 'cache'));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(folder, { recursive: true, force: true });
});

interface Loaded {
  readonly format: string;
  readonly source: string;
}
const next = (url: string): Promise<unknown> => Promise.resolve(`next ${url}`);

function write(name: string, text: string): string {
  writeFileSync(join(folder, name), text);
  return pathToFileURL(join(folder, name)).href;
}
const imported = async (url: string): Promise<Loaded> => (await load(url, {}, next)) as Loaded;

test('types go, lines can be found again, and the result is kept', async () => {
  const url = write('a.ts', 'export const n: number = 1;\nexport function f(x?: string): string { return x!; }\n');
  const { format, source } = await imported(url);
  expect(format).toBe('module');
  expect(source).toMatch(/^export const n = 1;\nexport function f\(x\) \{ return x; \}\n\/\/# sourceMappingURL=data:/);
  const cache = join(folder, 'cache/typescript');
  const [kept] = readdirSync(cache);
  writeFileSync(join(cache, kept!), 'from the cache');
  expect((await imported(url)).source).toBe('from the cache');
  write('a.ts', 'export const n: number = 2;\n');
  expect((await imported(url)).source).toMatch(/^export const n = 2;/);
});

test('modules of both kinds, and everything else as Node has it', async () => {
  mkdirSync(join(folder, 'old'));
  writeFileSync(join(folder, 'old/package.json'), '{ "type": "commonjs" }');
  expect((await imported(write('old/b.ts', 'export const n: number = 1;'))).format).toBe('commonjs');
  expect((await imported(write('old/b.mts', 'export const n: number = 1;'))).format).toBe('module');
  expect(await load('file:///x/y.js', {}, next)).toBe('next file:///x/y.js');
  expect(await load('file:///x/node_modules/y.ts', {}, next)).toBe('next file:///x/node_modules/y.ts');
  expect(await load('node:fs', {}, next)).toBe('next node:fs');
});

test('what cannot be read is an error with its line; a cache that cannot be written is none', async () => {
  const url = write('bad.ts', 'const a = 1;\nconst = 2;\n');
  await expect(imported(url)).rejects.toThrow(`${fileURLToPath(url)}:2: Variable declaration expected.`);
  writeFileSync(join(folder, 'file'), '');
  vi.stubEnv('PIPEWRIGHT_CACHE', join(folder, 'file'));
  expect((await imported(write('c.ts', 'export const n: number = 1;'))).source).toContain('n = 1');
});

test("the script's own compiler is used; one without the function for it is passed over", async () => {
  const compiler = (project: string, text: string): void => {
    mkdirSync(join(folder, project, 'node_modules/typescript'), { recursive: true });
    writeFileSync(join(folder, project, 'node_modules/typescript/index.js'), text);
  };
  compiler(
    'one',
    "exports.ScriptTarget = {}; exports.ModuleKind = {}; exports.transpileModule = () => ({ outputText: 'own' });",
  );
  expect((await imported(write('one/d.ts', 'export {};'))).source).toBe('own');
  compiler('two', 'exports.version = 7;');
  expect((await imported(write('two/d.ts', 'export const d: number = 1;'))).source).toContain('d = 1');
});
