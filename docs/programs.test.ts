/**
 * @file Every TypeScript program in the documentation is complete: it compiles in strict mode by itself (with the named files of
 * its page, such as `// train.ts`), runs, and prints what the page says. One that exports `main` runs on two ranks.
 */
import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import ts from 'typescript';
import { afterAll, describe, expect, test } from 'vitest';
import { type Block, blocksIn, root } from './testing/pages.ts';

mkdirSync(join(root, '.pipewright'), { recursive: true });
const folder = mkdtempSync(join(root, '.pipewright', 'docs-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** A folder for each page, with the models that pages speak of. */
function folderOf({ page }: Block): string {
  const path = join(folder, page.replaceAll('/', '-').replace(/\.md$/, ''));
  mkdirSync(path, { recursive: true });
  copyFileSync(join(root, 'testdata/models/mlp_dyn.pt2'), join(path, 'model.pt2'));
  return path;
}

const fileOf = (block: Block): string => join(folderOf(block), block.file ?? `block-${block.number}.ts`);
const blocks = blocksIn('ts');
for (const block of blocks) writeFileSync(fileOf(block), block.code);

test('all programs compile', () => {
  const program = ts.createProgram(blocks.map(fileOf), {
    strict: true,
    noUncheckedIndexedAccess: true,
    noEmit: true,
    allowImportingTsExtensions: true,
    skipLibCheck: true,
    module: ts.ModuleKind.NodeNext,
    moduleDetection: ts.ModuleDetectionKind.Force,
    target: ts.ScriptTarget.ES2023,
    types: ['node'],
  });
  const problems = ts.getPreEmitDiagnostics(program).map((problem) => {
    const block = blocks.find((one) => fileOf(one) === problem.file?.fileName);
    const line = problem.file?.getLineAndCharacterOfPosition(problem.start ?? 0).line ?? 0;
    const place = block === undefined ? problem.file?.fileName : `${block.page}:${block.line + 1 + line}`;
    return `${place}: ${ts.flattenDiagnosticMessageText(problem.messageText, ' ')}`;
  });
  expect(problems).toEqual([]);
  expect(blocks.length).toBeGreaterThan(20);
});

test('programs and examples need no casts around the types', () => {
  const examples = readdirSync(join(root, 'examples'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && !/node_modules|dist/.test(path))
    .map((path) => ({ place: `examples/${path}`, code: readFileSync(join(root, 'examples', path), 'utf8') }));
  const programs = blocks.map(({ page, line, code }) => ({ place: `${page}:${line}`, code }));
  const casts = [...programs, ...examples].flatMap(({ place, code }) =>
    castsIn(code).map((cast) => `${place}: ${cast}`),
  );
  expect(casts).toEqual([]);
  expect(examples.length).toBeGreaterThan(4);
});

/** Casts (`x as T`, `x!`) in a program; `as const` is none. */
function castsIn(code: string): string[] {
  const source = ts.createSourceFile('program.ts', code, ts.ScriptTarget.Latest, true);
  const casts: string[] = [];
  const visit = (node: ts.Node): void => {
    const isCast = ts.isAsExpression(node) && node.type.getText(source) !== 'const';
    if (isCast || ts.isNonNullExpression(node)) casts.push(node.getText(source));
    ts.forEachChild(node, visit);
  };
  visit(source);
  return casts;
}

const cli = join(root, 'packages/cli/bin/pipewright.js');

/** Runs a program as a user would, and returns what it printed. */
async function run(block: Block): Promise<string> {
  const cwd = folderOf(block);
  const env = { ...process.env, NODE_OPTIONS: '', NO_COLOR: '1' };
  const isRankProgram = /^export (?:async )?function main\b/m.test(block.code);
  const file = fileOf(block);
  const args = isRankProgram ? [cli, 'run', '-n', '2', '--threads', file] : [starter(file)];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd, env });
  return stdout;
}

/** Node 20 does not run TypeScript: a program that compiles and imports it does. */
function starter(file: string): string {
  const compile = (path: string): string => {
    const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
    const source = ts.sys.readFile(path)!;
    return ts.transpileModule(source, { compilerOptions: options }).outputText;
  };
  const target = file.replace(/\.ts$/, '.mjs');
  const imported = /from '\.\/([\w-]+)\.ts'/g;
  const code = compile(file);
  for (const [, name] of code.matchAll(imported))
    writeFileSync(join(file, '..', `${name}.mjs`), compile(join(file, '..', `${name}.ts`)));
  writeFileSync(target, code.replace(imported, "from './$1.mjs'"));
  return target;
}

describe('programs run, and print what the page says', () => {
  test.each(blocks.map((block): [string, Block] => [`${block.page}:${block.line}`, block]))('%s', async (_, block) => {
    const printed = await run(block);
    if (block.prints !== undefined) expect(printed.trimEnd()).toBe(block.prints.trimEnd());
  });
});
