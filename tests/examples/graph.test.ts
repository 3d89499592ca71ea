/** @file The examples of graphs: an exported and a traced model train in stages, and the loss goes down. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

function lossesOf(path: string, ...args: readonly string[]): { readonly losses: number[]; readonly out: string } {
  const file = fileURLToPath(new URL(`../../examples/dist/${path}`, import.meta.url));
  const env = { ...process.env, PIPEWRIGHT_THREADS: '1' };
  const { status, stdout, stderr } = spawnSync(process.execPath, [file, ...args], {
    encoding: 'utf8',
    timeout: 290_000,
    env,
  });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return { losses: [...stdout.matchAll(/^step .* loss ([\d.]+)/gm)].map((match) => Number(match[1])), out: stdout };
}

test('03: an exported GPT-2 in four stages', () => {
  const { losses, out } = lossesOf('03-finetune-pt2/finetune.js', '--steps', '40');
  expect(losses).toHaveLength(3);
  expect(losses[0]).toBeGreaterThan(4);
  expect(losses[2]).toBeLessThan(3.4);
  expect(out.match(/^stage \d: /gm)).toHaveLength(4);
});

test('03: in two stages, by another schedule', () => {
  const { losses } = lossesOf('03-finetune-pt2/finetune.js', '--steps', '20', '--ranks', '2', '--schedule', 'GPipe');
  expect(losses[1]).toBeLessThan((losses[0] as number) - 0.5);
});

test('04: a traced U-Net with skips', () => {
  const { losses, out } = lossesOf('04-trace-unet/train.js', '--steps', '40');
  expect(out).toContain('stages exchange values along 0>1 1>2 0>3 2>3\n');
  expect(losses[0]).toBeGreaterThan(0.1);
  expect(losses[2]).toBeLessThan(0.05);
});
