/** @file A process that is killed while its thread writes; tests/checkpoint/kill.mjs does it at every call. */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { findCheckpoint } from '../format/folder.ts';
import { verifyCheckpoint } from '../reading/verify.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-kill-'));
afterAll(() => rmSync(root, { recursive: true }));
const program = fileURLToPath(new URL('../../../testing/checkpoint/saving.mjs', import.meta.url));

function save(folder: string, step: number, dieAt?: number): { status: number | null; signal: string | null } {
  const env = { ...process.env, NODE_OPTIONS: '', ...(dieAt !== undefined && { DIE_AT: String(dieAt) }) };
  const { status, signal, error } = spawnSync(process.execPath, [program, folder, String(step)], {
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
    timeout: 300_000,
  });
  if (error !== undefined) throw error;
  return { status, signal };
}

test('killed at some of its calls, the old checkpoint or the new one is whole', () => {
  const start = join(root, 'start');
  expect(save(start, 1).status).toBe(0);
  for (const [dieAt, step] of [
    [7, 1],
    [1000, 2],
  ] as const) {
    const folder = join(root, String(dieAt));
    cpSync(start, folder, { recursive: true });
    expect(save(folder, 2, dieAt).signal).toBe(dieAt === 7 ? 'SIGKILL' : null);
    expect(findCheckpoint(folder).manifest.step).toBe(step);
    expect(verifyCheckpoint(folder)).toEqual([]);
  }
}, 120_000);
