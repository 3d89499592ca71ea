/** @file A job that has ended, written into a page that opens in a real browser without a server. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { LiveStatus } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';
import { plan } from '../testing/plan.ts';
import { runLines } from '../testing/run-lines.ts';
import { readLiveLines } from './server/live-history.ts';
import { pageWith } from './server/page-file.ts';

describe.skipIf(chromiumPath === undefined)('an ended job', () => {
  const studio = new BrowserPage();

  test('is shown from the file alone: its end, its curves, its last step and where every rank was', async () => {
    const { page, folder } = studio;
    const live = join(folder, 'live');
    mkdirSync(live);
    for (const rank of [0, 1])
      writeFileSync(
        join(live, `rank-${rank}.jsonl`),
        runLines()
          .filter((one) => one.rank === rank)
          .map(({ line }) => `${JSON.stringify(line)}\n`)
          .join(''),
      );
    const places = [0, 1].map((rank) => ({
      ...{ rank, state: 'ended', step: 2, slot: null, action: '', waitingFor: null, since: 1_000_000 },
    }));
    const ended = { failed: false, message: '' };
    const status = { kind: 'status', places, ended, time: Date.UTC(2026, 0, 2, 3, 4) } as LiveStatus;
    writeFileSync(join(live, 'launcher.jsonl'), `${JSON.stringify(status)}\n`);
    const file = join(folder, 'ended.html');
    writeFileSync(file, pageWith({ files: [], events: null, lines: readLiveLines(live) }));
    await page.goto(pathToFileURL(file).href);

    await expect.poll(() => studio.text('[role=status]')).toBe('ended on 2026-01-02 03:04 UTC, step 2');
    expect(await studio.text('nav button[aria-current]')).toBe('Live');
    await expect.poll(() => studio.text('[aria-live]')).toMatch(/^The job has ended\..*The last step took 360 ms/);
    await expect.poll(() => page.locator('.curve').count()).toBeGreaterThan(3);
    await expect.poll(() => page.locator('canvas.lanes').count()).toBe(1);
    expect(await page.$$eval('.places tbody tr', (rows) => rows.map((row) => row.textContent))).toEqual([
      expect.stringMatching(/^0ended2/),
      expect.stringMatching(/^1ended2/),
    ]);
    expect(await page.locator('button:has-text("pause")').count()).toBe(0);
    // Where the launcher no longer knows of any rank, there is no table without rows.
    const gone = `-1 ${JSON.stringify({ ...status, places: [] })}`;
    writeFileSync(file, pageWith({ files: [], events: null, lines: [...readLiveLines(live), gone] }));
    await page.reload();
    await expect.poll(() => studio.text('[aria-live]')).toMatch(/The last step took 360 ms/);
    expect(await page.locator('.places').count()).toBe(0);
    expect(studio.requests).toEqual([]);
    expect(studio.problems).toEqual([]);
  });

  test('of one that still runs, a rank that waits is said first: for whom and for how long', async () => {
    const { page, folder } = studio;
    const time = Date.UTC(2026, 0, 2, 3, 4);
    const common = { step: 3, slot: 0 };
    const places = [
      { ...common, rank: 0, state: 'waiting', action: '0RECV_B0', waitingFor: 1, since: time - 9000 },
      { ...common, rank: 1, state: 'working', action: '1B0', waitingFor: null, since: time - 9500 },
    ];
    const status = { kind: 'status', places, ended: null, time } as unknown as LiveStatus;
    const lines = runLines().map(({ rank, line }) => `${rank} ${JSON.stringify(line)}`);
    const file = join(folder, 'waiting.html');
    writeFileSync(file, pageWith({ files: [], events: null, lines: [...lines, `-1 ${JSON.stringify(status)}`] }));
    await page.goto(pathToFileURL(file).href);
    await expect.poll(() => studio.text('[aria-live]')).toMatch(/^Rank 0 has waited 9 s for rank 1 \(0RECV_B0\)\./);
    expect(await page.$$eval('.places th', (cells) => cells.map((cell) => cell.textContent))).toEqual([
      ...['rank', 'state', 'step', 'at', 'waits for', 'for'],
    ]);
    expect(
      await page.$$eval('.places tbody tr:first-child td', (cells) => cells.map((cell) => cell.textContent)),
    ).toEqual(['0', 'waiting', '3', 'slot 0: 0RECV_B0', 'rank 1', '9 s']);
    expect(studio.problems).toEqual([]);
  });

  test('with the plan that it followed: Live says what was predicted, Explore shows the plan in its shape', async () => {
    const { page, folder } = studio;
    const tried = { ...plan, predicted: { ...plan.predicted, step: 0.5 } };
    const lines = runLines().map(({ rank, line }) => `${rank} ${JSON.stringify(line)}`);
    const file = join(folder, 'planned.html');
    const files = [{ name: 'plan.json', text: JSON.stringify(tried) }];
    writeFileSync(file, pageWith({ files, events: null, lines }));
    await page.goto(pathToFileURL(file).href);
    await expect.poll(() => studio.text('[aria-live]')).toContain('planned in plan.json: 500 ms (28.0% shorter)');
    await page.click('nav button:has-text("Explore")');
    await expect.poll(() => page.inputValue('select')).toBe('plan');
    await expect.poll(() => studio.text('.diagnosis')).toContain('When the plan was tried, a step took 500 ms;');
    await page.getByLabel('ranks', { exact: true }).fill('2');
    await expect
      .poll(() => studio.text('.diagnosis'))
      .toContain('The plan is for 4 ranks, 4 stages and 8 microbatches');
    expect(studio.problems).toEqual([]);
  });
});
