/** @file docs/tracing.md: its programs run and give what it says, and its tables name what is there. */
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import ts from 'typescript';
import { afterAll, expect, test } from 'vitest';
import * as graph from '../index.ts';

const root = new URL('../../../../', import.meta.url);
const page = readFileSync(new URL('docs/tracing.md', root), 'utf8');
const programs = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((match) => match[1] as string);

mkdirSync(new URL('.pipewright/', root), { recursive: true });
const folder = mkdtempSync(join(fileURLToPath(root), '.pipewright', 'docs-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('its programs run one after the other', async () => {
  const result = '{ stages, text, size, names, picture, loss: loss.item(), learned, marked: marked.numStages }';
  const options = { compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext } };
  const { outputText } = ts.transpileModule(`${programs.join('\n')}\nconsole.log(JSON.stringify(${result}));`, options);
  writeFileSync(join(folder, 'all.mjs'), outputText);
  const env = { ...process.env, NODE_OPTIONS: '' };
  const { stdout } = await promisify(execFile)(process.execPath, ['all.mjs'], { cwd: folder, env });
  const found = JSON.parse(stdout) as Record<string, unknown>;
  expect(found['stages']).toEqual(['embed layers.0-1', 'layers.2-3']);
  expect(page).toContain("// ['embed layers.0-1', 'layers.2-3']");
  expect(found['text']).toMatch(/^graph\(%x: float32\[batch, 8\]\) where 1 <= batch <= inf\n/);
  expect((found['names'] as string[][]).map((list) => list.length)).toEqual([4, 4, 2]);
  expect(found['picture']).toContain('module submod_pp_1(%submod_pp_0)');
  expect(found['loss']).toBeGreaterThan(0);
  expect(found).toMatchObject({ learned: true, marked: 2 });
});

test('its codes and names exist', () => {
  const files = ['trace', 'split', 'pipe', 'graph'].flatMap((folder) => {
    const dir = new URL(`../${folder}/`, import.meta.url);
    return readdirSync(dir).map((name) => new URL(name, dir));
  });
  const sources = files.map((file) => readFileSync(file, 'utf8')).join('\n');
  const codes = [...page.matchAll(/^\| ([A-Z_, ]+) \|/gm)].flatMap((match) => (match[1] as string).split(', '));
  expect(codes.length).toBeGreaterThan(8);
  for (const code of codes) expect(sources, code).toContain(`'${code}'`);
  for (const name of [
    'pipeline',
    'traceModule',
    'measureCosts',
    'SplitPoint',
    'pipeSplit',
    'PipeSequential',
    'describePipe',
  ])
    expect(graph, name).toHaveProperty(name);
});
