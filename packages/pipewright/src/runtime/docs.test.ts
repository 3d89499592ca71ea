/** @file docs/runtime.md: its programs run, and its tables name what is there. */
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import * as schedule from '@pipewright/schedule';
import ts from 'typescript';
import { afterAll, describe, expect, test } from 'vitest';

const root = new URL('../../../../', import.meta.url);
const page = readFileSync(new URL('docs/runtime.md', root), 'utf8');
const programs = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((match) => match[1] as string);

mkdirSync(new URL('.pipewright/', root), { recursive: true });
const folder = mkdtempSync(join(fileURLToPath(root), '.pipewright', 'docs-'));
afterAll(() => rmSync(folder, { recursive: true }));

const plain = (program: string): string =>
  ts.transpileModule(program, { compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext } })
    .outputText;

/** Runs a program with Node and reads the JSON it prints last. */
async function run(name: string, program: string): Promise<unknown> {
  writeFileSync(join(folder, name), plain(program));
  const env = { ...process.env, NODE_OPTIONS: '' };
  const { stdout } = await promisify(execFile)(process.execPath, [name], { cwd: folder, env });
  return JSON.parse(stdout);
}

describe('docs/runtime.md', () => {
  test('the first program trains on four threads', async () => {
    writeFileSync(join(folder, 'train.mjs'), plain(programs[0] as string));
    const start = (programs[1] as string).replace("'train.ts'", "'train.mjs'");
    const losses = (await run('start.mjs', `${start}\nconsole.log(JSON.stringify(losses));`)) as number[];
    expect(losses).toHaveLength(20);
    expect(losses.at(-1)).toBeLessThan(losses[0] as number);
  });

  test('the others run one after the other, in one process', async () => {
    const text = programs.slice(2).join('\n');
    const result = '{ losses: losses.length, norm, shape: outputs?.shape, seen, message, report: recorder.report() }';
    const found = (await run('others.mjs', `${text}\nconsole.log(JSON.stringify(${result}));`)) as Record<
      string,
      unknown
    >;
    expect(found['losses']).toBe(4);
    expect(found['norm']).toBeGreaterThan(0);
    expect(found['shape']).toEqual([8, 8]);
    expect(found['seen']).toContain('0: F of stage 0');
    expect(found['seen']).toContain('step 4 is over');
    expect(found['message']).toBe('STEP_FAILED on rank 0 at 0F0');
    expect(found['report']).toContain('Interleaved1F1B: 1 rank, 3 stages, 4 microbatches');
    expect(JSON.parse(readFileSync(join(folder, 'trace.json'), 'utf8'))).toHaveProperty('traceEvents');
  });

  test('its tables name options and codes that exist', () => {
    const sources = ['runtime/options.ts', 'microbatch/given.ts', 'stage/pipeline-stage.ts'].map((path) =>
      readFileSync(new URL(`packages/pipewright/src/${path}`, root), 'utf8'),
    );
    const options = [...page.matchAll(/^\| ((?:`\w+`(?:, )?)+) \|/gm)].flatMap((row) =>
      [...(row[1] as string).matchAll(/`([a-z]\w+)`/g)].map((match) => match[1] as string),
    );
    expect(options.length).toBeGreaterThan(20);
    for (const name of options) expect(sources.join('\n')).toMatch(new RegExp(`readonly ${name}\\?:`));
    const code = ['agreement', 'batch', 'errors', 'lowering', 'row/plan', 'runtime'].map((name) =>
      readFileSync(new URL(`packages/pipewright/src/runtime/${name}.ts`, root), 'utf8'),
    );
    const known = [...code, ...sources].join('\n');
    for (const [, name] of page.matchAll(/`([A-Z]+_[A-Z_]+|BROKEN)`/g)) expect(known).toContain(`'${name}'`);
    for (const [, name] of page.matchAll(/`(recorded\w+|recording\w+|meanCosts)`/g))
      expect(Object.keys(schedule)).toContain(name);
  });
});
