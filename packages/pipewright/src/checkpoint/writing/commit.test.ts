/** @file A save that dies at any of its calls leaves the old checkpoint or the new one, whether what was not synced is there or lost. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { SmallRun } from '../../../testing/checkpoint/small-run.ts';
import { Died, VolatileDisk } from '../../../testing/checkpoint/volatile-disk.ts';
import { listCheckpoints } from '../format/folder.ts';
import { loadCheckpoint } from '../reading/load.ts';
import { verifyCheckpoint } from '../reading/verify.ts';
import { writeCheckpoint } from './commit.ts';
import { realFileSystem } from './file-system.ts';
import { prepareSave } from './save.ts';
import { SnapshotMemory } from './snapshot-memory.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-commit-'));
afterAll(() => rmSync(root, { recursive: true }));

const run = new SmallRun();

/** The job of a save, as it would be written to the root of the disk. */
function jobOf(folder: string, step: number): ReturnType<typeof prepareSave> {
  run.value = step;
  return prepareSave(folder, { ...run.state, step, keep: 1, files: { 'config.json': { step } } }, new SnapshotMemory());
}

test('death at every call: exactly one sound checkpoint is loaded, the old or the new', () => {
  const start = mkdtempSync(join(root, 'start-'));
  writeCheckpoint(jobOf(start, 1), realFileSystem);
  const whole = new VolatileDisk(start);
  const job = { ...jobOf(start, 2), folder: '' };
  writeCheckpoint(job, whole);
  expect(whole.log.length).toBeGreaterThan(20);
  const seen = new Set<number>();
  for (let dieAt = 1; dieAt <= whole.calls + 1; dieAt++) {
    const disk = new VolatileDisk(start, dieAt);
    if (dieAt <= whole.calls) expect(() => writeCheckpoint(job, disk)).toThrow(Died);
    else writeCheckpoint(job, disk);
    for (const what of ['all', 'synced'] as const) {
      const folder = mkdtempSync(join(root, 'crash-'));
      disk.recover(folder, what);
      const place = `call ${dieAt} (${disk.log.at(-1)}), ${what}`;
      const { step } = loadCheckpoint(folder, run.state);
      expect(run.value, place).toBe(step);
      expect(verifyCheckpoint(folder), place).toEqual([]);
      seen.add(step);
      // And the run goes on from there: the next save leaves one complete checkpoint and nothing else.
      writeCheckpoint(jobOf(folder, 3), realFileSystem);
      expect(loadCheckpoint(folder, run.state).step, place).toBe(3);
      expect(listCheckpoints(folder), place).toEqual(['step-00000003']);
      expect(
        readdirSync(folder)
          .filter((name) => !name.startsWith('.'))
          .sort(),
        place,
      ).toEqual(['latest', 'step-00000003']);
      rmSync(folder, { recursive: true });
    }
  }
  expect([...seen].sort()).toEqual([1, 2]);
}, 60_000);
