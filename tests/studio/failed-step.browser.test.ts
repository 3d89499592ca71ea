/** @file A step in which a rank stays and then dies: the page shows how far every rank has come, while it lasts and afterwards. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../../packages/studio/testing/browser-page.ts';
import { coloursOf } from './colours.ts';
import { mostMs, path, useJob, wait } from './job.ts';

describe.skipIf(chromiumPath === undefined)('a step that does not end', () => {
  const studio = new BrowserPage();
  const start = useJob();

  test(
    'grows while it lasts, and stays with all that was done when the rank is killed',
    async () => {
      const { page, folder } = studio;
      const file = join(folder, 'die');
      const started = start([
        'run',
        '-n',
        '2',
        '--cores',
        '1',
        '--studio',
        path('tests/studio/dies-in-forward.mjs'),
        file,
      ]);
      await expect.poll(() => started.errors, wait).toMatch(/the studio is at http:\/\/127\.0\.0\.1:\d+\/\?token=/);
      await page.goto(/http:\S+/.exec(started.errors)![0]);

      await expect
        .poll(() => studio.text('[aria-live]'), wait)
        .toMatch(/Rank 0 has waited \d+ s for rank 1 \(0RECV_B2\)/);
      // What ranks and launcher tell comes one after the other.
      await expect
        .poll(() => studio.text('[aria-live]'), wait)
        .toContain('Rank 0 has done 6 of 8 actions of step 9, and waits for rank 1');
      await expect
        .poll(() => studio.text('[aria-live]'), wait)
        .toContain('Rank 1 has done 4 of 8 actions of step 9, and is in 1F2.');
      await expect.poll(() => studio.text('[role=status]'), wait).toMatch(/^connected, step [78]$/);

      writeFileSync(file, '');
      await expect.poll(() => studio.text('.problem'), wait).toMatch(/The job failed: .*[Rr]ank 1.*step 9.*SIGKILL/s);
      const said = (): Promise<string | null> => studio.text('.problem');
      await expect
        .poll(said, wait)
        .toContain('Rank 0 had done 6 of 8 actions of step 9, and waited for rank 1 (0RECV_B2).');
      await expect.poll(said, wait).toContain('Rank 1 had done 4 of 8 actions of step 9, and was in 1F2.');
      await expect.poll(async () => (await coloursOf(page)).warn, wait).toBeGreaterThan(300); // two frames and an arrow
      const canvas = page.locator('canvas.lanes');
      await expect.poll(() => canvas.getAttribute('aria-label'), wait).toMatch(/^The step under way/);
      // What rank 1 had not finished is the long forward on the right.
      await expect.poll(async () => (await coloursOf(page)).forward, wait).toBeGreaterThan(1000);
      const box = (await canvas.boundingBox())!;
      await page.mouse.click(box.x + box.width - 60, box.y + 95);
      await expect.poll(() => studio.text('.chosen'), wait).toMatch(/^1F2 on rank 1: since [\d.]+ ms, not finished\.$/);

      await page.click('button:has-text("last finished step")');
      await expect.poll(() => canvas.getAttribute('aria-label'), wait).toMatch(/^Last recorded step/);
      await page.click('button:has-text("last finished step")');
      await expect.poll(() => canvas.getAttribute('aria-label'), wait).toMatch(/^The step under way/);
      await expect.poll(() => started.code, wait).toBeGreaterThan(0);
      // The report of the launcher and the table name the same slots.
      const slots =
        /rank 0 waits in step 9 at slot (\d+) \(0RECV_B2\).*rank 1 failed in step 9 at slot (\d+) \(1F2\)/.exec(
          started.errors,
        );
      const rows = await page.$$eval('.places tbody tr', (all) =>
        all.map((row) => row.querySelector('td:nth-child(4)')?.textContent),
      );
      expect(rows).toEqual([`slot ${slots?.[1]}: 0RECV_B2`, `slot ${slots?.[2]}: 1F2`]);
      expect(studio.problems.filter((text) => !/ERR_/.test(text))).toEqual([]);
    },
    mostMs + 60_000,
  );
});
