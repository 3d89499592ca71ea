/** @file Every command line of `pipewright` in the documentation runs, and prints what the page says. */
import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Block, blocksIn, blocksOf, pages, root, textOf } from './testing/pages.ts';

mkdirSync(join(root, '.pipewright'), { recursive: true });
const folder = mkdtempSync(join(root, '.pipewright', 'commands-'));
afterAll(() => rmSync(folder, { recursive: true }));

beforeAll(() => {
  // `npx pipewright` is what was built here.
  mkdirSync(join(folder, 'bin'));
  const cli = join(root, 'packages/cli/bin/pipewright.js');
  writeFileSync(join(folder, 'bin/npx'), `#!/bin/sh\nshift\nexec "${process.execPath}" "${cli}" "$@"\n`);
  chmodSync(join(folder, 'bin/npx'), 0o755);
});

/** The lines of a block, without comments. */
function linesOf({ code }: Block): string[] {
  return code
    .split('\n')
    .map((line) => line.replace(/\s+#.*$|^#.*$/, '').trim())
    .filter((line) => line !== '');
}

/** Commands that need another machine, the network, or a toolchain. */
const elsewhere =
  /^npx pipewright setup\b|--nnodes|^(?:mkdir|cd|npm|git|torchrun|srun|sudo|cmake|node|for) |^[A-Z_]+=|^-D|^\s|^npx vitest/;

const blocks = blocksIn('sh');
const commands = blocks.flatMap((block) =>
  linesOf(block)
    .filter((line) => !elsewhere.test(line))
    .map((line): [string, string, Block] => [`${block.page}:${block.line}`, line, block]),
);

describe('commands run', () => {
  test.each(commands)('%s %s', (_, line, block) => {
    const cwd = join(folder, block.page.replaceAll('/', '-'));
    mkdirSync(cwd, { recursive: true });
    copyFileSync(join(root, 'testdata/models/mlp_dyn.pt2'), join(cwd, 'model.pt2'));
    writeFileSync(join(cwd, 'mine.csv'), '0F0,0B0\n1F0,1B0\n');
    for (const { file, code } of blocksOf(block.page)) if (file !== undefined) writeFileSync(join(cwd, file), code);
    const env = {
      ...process.env,
      PATH: `${join(folder, 'bin')}:${process.env['PATH']}`,
      NODE_OPTIONS: '',
      NO_COLOR: '1',
    };
    const { status, stdout, stderr } = spawnSync('sh', ['-c', line], { cwd, env, encoding: 'utf8', timeout: 300_000 });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    if (block.prints !== undefined && linesOf(block).length === 1)
      expect(stdout.trimEnd()).toBe(block.prints.trimEnd());
  });

  test('there are some', () => expect(commands.length).toBeGreaterThan(10));
});

test('commands in the running text run too, or name what is yours', () => {
  const found = pages.flatMap((page) =>
    [
      ...textOf(page)
        .replace(/^```[^]*?^```$/gm, '')
        .matchAll(/`npx (pipewright (?:schedule|simulate|compare)[^`]*)`/g),
    ].map((match): [string, string] => [page, match[1] as string]),
  );
  expect(found.length).toBeGreaterThan(3);
  for (const [page, line] of found) {
    const cwd = join(folder, 'text');
    mkdirSync(cwd, { recursive: true });
    const words = line.split(' ').slice(1);
    if (words.length < 3 && !words.includes('--list')) continue; // the name of a command alone
    const cli = join(root, 'packages/cli/bin/pipewright.js');
    const { status, stderr } = spawnSync(process.execPath, [cli, ...words], {
      cwd,
      encoding: 'utf8',
      timeout: 300_000,
    });
    expect(status, `${page}: ${line}: ${stderr}`).toBe(0);
  }
});
