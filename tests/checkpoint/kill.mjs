// @ts-check
/**
 * @file Kills a save with SIGKILL at every one of its file-system calls, each in a process of its own, and loads what is left:
 * `node tests/checkpoint/kill.mjs`. Needs the built packages.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { findCheckpoint, verifyCheckpoint } from 'pipewright';

const program = fileURLToPath(new URL('../../packages/pipewright/testing/checkpoint/saving.mjs', import.meta.url));
const root = mkdtempSync(join(tmpdir(), 'pipewright-kill-'));

/** @param {string} folder @param {number} step @param {number} [dieAt] */
function save(folder, step, dieAt) {
  const env = { ...process.env, ...(dieAt !== undefined && { DIE_AT: String(dieAt) }) };
  return spawnSync(process.execPath, [program, folder, String(step)], { env, stdio: 'ignore' });
}

try {
  const start = join(root, 'start');
  save(start, 1);
  const left = { old: 0, new: 0 };
  for (let dieAt = 1; ; dieAt++) {
    const folder = join(root, String(dieAt));
    cpSync(start, folder, { recursive: true });
    const { signal } = save(folder, 2, dieAt);
    const { manifest } = findCheckpoint(folder);
    const problems = verifyCheckpoint(folder);
    if (problems.length > 0 || ![1, 2].includes(manifest.step))
      throw new Error(`killed at call ${dieAt}: ${JSON.stringify(problems)}`);
    left[manifest.step === 1 ? 'old' : 'new']++;
    rmSync(folder, { recursive: true });
    if (signal === null) {
      console.log(
        `killed at each of ${dieAt - 1} calls: ${left.old} times the old one, ${left.new - 1} times the new one, always whole`,
      );
      break;
    }
  }
} finally {
  rmSync(root, { recursive: true });
}
