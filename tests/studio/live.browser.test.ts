/** @file A run of example 02 in the studio, from its first step to the death of a rank, in a real browser. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { serveStudio } from '@pipewright/studio';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../../packages/studio/testing/browser-page.ts';
import { coloursOf } from './colours.ts';
import { mostMs, path, useJob, wait } from './job.ts';

const example = path('examples/dist/02-train-gpt-pipeline/train.js');
describe.skipIf(chromiumPath === undefined)('a live run', () => {
  const studio = new BrowserPage();
  const start = useJob();

  test(
    'curves, timeline and places while it runs; another page attaches; then a rank is killed, and the picture stays',
    async () => {
      const { page, folder } = studio;
      const live = join(folder, 'live');
      const options = ['--ranks', '2', '--steps', '1000000', '--size', 'tiny', '--trace', join(folder, 'trace.json')];
      const started = start(['run', '-n', '2', '--cores', '1', '--studio', '--live', live, example, ...options]);
      await expect.poll(() => started.errors, wait).toMatch(/the studio is at http:\/\/127\.0\.0\.1:\d+\/\?token=/);
      const url = /http:\S+/.exec(started.errors)![0];
      await page.setViewportSize({ width: 1280, height: 800 });
      await page.goto(url);

      const step = async (): Promise<number> =>
        Number(/step (\d+)/.exec((await studio.text('[role=status]')) ?? '')?.[1] ?? -1);
      await expect.poll(step, wait).toBeGreaterThan(5);
      const before = await step();
      await expect.poll(step, wait).toBeGreaterThan(before);
      await expect.poll(() => studio.text('[role=status]'), wait).toMatch(/^connected/);
      await expect
        .poll(() => studio.text('[aria-live]'), wait)
        .toMatch(/The last step took [\d.]+ ms; recent average [\d.]+ ms/);
      const curves = await page.$$eval('.curve', (all) => all.map((one) => one.getAttribute('aria-label') ?? ''));
      expect(curves.map((label) => label.replace(/,? last value.*$/, ''))).toEqual([
        ...['step time, s', 'loss', 'tokens/s', 'memory, MB', 'waiting, %'],
      ]);
      for (const label of curves) expect(label).toMatch(/last value [\d.]+/);
      expect(await page.$$eval('.places tbody tr', (rows) => rows.length)).toBe(2);

      // Pausing freezes the view, not the run.
      await page.click('button:has-text("pause")');
      const frozen = await step();
      await page.waitForTimeout(1500);
      expect(await step()).toBe(frozen);
      await page.click('button:has-text("go on")');
      await expect.poll(step, wait).toBeGreaterThan(frozen);

      // Somebody else attaches to the running job by its folder.
      const other = await serveStudio({ live });
      const second = await studio.another();
      await second.goto(other.url);
      await expect.poll(() => second.textContent('[role=status]'), wait).toMatch(/^connected, step \d+/);
      if (process.env['PIPEWRIGHT_PICTURES'] !== undefined)
        await page.screenshot({ path: join(process.env['PIPEWRIGHT_PICTURES'], 'studio-live.png') });

      const head = readFileSync(join(live, 'rank-1.jsonl'), 'utf8').split('\n', 1)[0]!;
      const pid = Number(/:(\d+)$/.exec((JSON.parse(head) as { process: string }).process)?.[1]);
      expect(pid).toBeGreaterThan(1);
      process.kill(pid, 'SIGKILL');

      for (const each of [page, second]) {
        await expect.poll(() => each.textContent('.problem'), wait).toMatch(/The job failed: .*[Rr]ank 1.*SIGKILL/s);
        for (const rank of [0, 1])
          await expect
            .poll(() => each.textContent('.problem'), wait)
            .toMatch(new RegExp(`Rank ${rank} had (ended|done \\d+ of 16 actions of) step \\d+`));
        const rows = await each.$$eval('.places tbody tr', (all) => all.map((row) => row.textContent ?? ''));
        expect(rows).toHaveLength(2);
        expect(rows[1]).toMatch(/^1(failed|ended|killed|gone|lost|exited)/);
        expect(rows[0]).toMatch(/^0(working|waiting|stopped|failed)\d+[a-zA-Z]/); // its state, its step, and where in it
        // The last step is still there: bars in the colours of forwards.
        await expect.poll(async () => (await coloursOf(each)).forward, wait).toBeGreaterThan(100);
      }
      await expect.poll(() => started.code, wait).toBeGreaterThan(0);
      // The server of the run has gone with it, the other one has not; both pages stay as they were, and say that it is over.
      for (const each of [page, second]) {
        await expect.poll(() => each.textContent('[role=status]'), wait).toMatch(/^failed on [\d-]+ [\d:]+ UTC, step/);
        expect(await each.textContent('.problem')).toContain('The job failed');
        expect(await each.locator('button:has-text("pause")').count()).toBe(0);
      }
      if (process.env['PIPEWRIGHT_PICTURES'] !== undefined)
        await page.screenshot({ path: join(process.env['PIPEWRIGHT_PICTURES'], 'studio-failed-run.png') });
      await second.close();
      await other.close();
    },
    mostMs + 60_000,
  );
});
