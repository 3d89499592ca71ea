/** @file A step in which a rank stays and then dies: the page shows how far every rank has come, while it lasts and afterwards. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { afterEach, describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../../packages/studio/testing/browser-page.ts';
import { Job, mostMs, path } from './job.ts';

/** Pixels of each colour in the timeline: forwards, backwards, what is not finished. */
function coloursOf(page: Page): Promise<{ forward: number; backward: number; warn: number }> {
  return page.evaluate(() => {
    const canvas = document.querySelector<HTMLCanvasElement>('canvas.lanes')!;
    const { data } = canvas.getContext('2d')!.getImageData(90, 0, canvas.width - 90, canvas.height);
    const found = { forward: 0, backward: 0, warn: 0 };
    for (let i = 0; i < data.length; i += 4) {
      const color = (data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!;
      if (color === 0x3f7fd6) found.forward++;
      else if (color === 0xda701f) found.backward++;
      else if (color === 0xc62828) found.warn++;
    }
    return found;
  });
}

describe.skipIf(chromiumPath === undefined)('a step that does not end', () => {
  const studio = new BrowserPage();
  let job: Job | null = null;
  afterEach(() => {
    job?.end();
    job = null;
  });
  const wait = { timeout: 120_000, interval: 250 };

  test(
    'grows while it lasts, and stays with all that was done when the rank is killed',
    async () => {
      const { page, folder } = studio;
      const file = join(folder, 'die');
      const started = new Job([
        'run',
        '-n',
        '2',
        '--cores',
        '1',
        '--studio',
        path('tests/studio/dies-in-forward.mjs'),
        file,
      ]);
      job = started;
      await expect.poll(() => started.errors, wait).toMatch(/the studio is at http:\/\/127\.0\.0\.1:\d+\/\?token=/);
      await page.goto(/http:\S+/.exec(started.errors)![0]);

      await expect
        .poll(() => studio.text('[aria-live]'), wait)
        .toMatch(/Rank 0 has waited \d+ s for rank 1 \(0RECV_B2\)/);
      expect(await studio.text('[aria-live]')).toContain(
        'Rank 0 has done 6 of 8 actions of step 9, and waits for rank 1',
      );
      expect(await studio.text('[aria-live]')).toContain('Rank 1 has done 4 of 8 actions of step 9, and is in 1F2.');
      expect(await studio.text('[role=status]')).toMatch(/^connected, step [78]$/);

      writeFileSync(file, '');
      await expect.poll(() => studio.text('.problem'), wait).toMatch(/The job failed: .*[Rr]ank 1.*step 9.*SIGKILL/s);
      const said = await studio.text('.problem');
      expect(said).toContain('Rank 0 had done 6 of 8 actions of step 9, and waited for rank 1 (0RECV_B2).');
      expect(said).toContain('Rank 1 had done 4 of 8 actions of step 9, and was in 1F2.');
      await expect.poll(async () => (await coloursOf(page)).warn).toBeGreaterThan(300); // two frames and an arrow
      const canvas = page.locator('canvas.lanes');
      expect(await canvas.getAttribute('aria-label')).toMatch(/^The step under way/);
      // What rank 1 had not finished is the long forward on the right.
      expect((await coloursOf(page)).forward).toBeGreaterThan(1000);
      const box = (await canvas.boundingBox())!;
      await page.mouse.click(box.x + box.width - 60, box.y + 95);
      await expect.poll(() => studio.text('.chosen')).toMatch(/^1F2 on rank 1: since [\d.]+ ms, not finished\.$/);

      await page.click('button:has-text("last finished step")');
      await expect.poll(() => canvas.getAttribute('aria-label')).toMatch(/^Last recorded step/);
      await page.click('button:has-text("last finished step")');
      await expect.poll(() => canvas.getAttribute('aria-label')).toMatch(/^The step under way/);
      await expect.poll(() => started.code, wait).toBeGreaterThan(0);
      expect(studio.problems.filter((text) => !/ERR_/.test(text))).toEqual([]);
    },
    mostMs + 60_000,
  );
});
