/** @file Exploring what takes long, in a real browser: a worker does it, the page stays usable, and there is an answer. */
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';

describe.skipIf(chromiumPath === undefined)('large shapes', () => {
  const studio = new BrowserPage();

  test('64 ranks and 512 microbatches: every schedule is simulated, and the fastest is named', async () => {
    const { page } = studio;
    await studio.open('ranks=64&microbatches=512');
    const wait = { timeout: 240_000 };
    await expect
      .poll(() => studio.text('.answer'), wait)
      .toMatch(/^Fastest for 64 ranks and 512 microbatches: InterleavedZeroBubble, 1568 ms with 2\.0% idle/);
    expect(await page.$$eval('.compare tbody tr', (rows) => rows.map((row) => row.textContent ?? ''))).toSatisfy(
      (rows: string[]) => rows.length >= 14 && rows.every((row) => / ms/.test(row)),
    );
    await expect.poll(() => studio.text('.diagnosis'), wait).toContain('1F1B: step time 1725 ms, 1');
    await page.focus('canvas.lanes');
    expect(studio.problems).toEqual([]);
    expect(studio.requests).toEqual([]);
  });

  test('4096 microbatches on 32 ranks with 8 stages each: the step is continued from fewer, and that is said', async () => {
    const { page } = studio;
    await page.addInitScript(() => {
      // Only the chosen schedule: the table would take minutes.
      const { postMessage } = Worker.prototype;
      Worker.prototype.postMessage = function (this: Worker, request: { draw: boolean }) {
        if (request.draw) postMessage.call(this, request);
      };
    });
    await studio.open('ranks=32&stages=8&microbatches=4096&schedule=Interleaved1F1B');
    await expect
      .poll(() => studio.text('.diagnosis'), { timeout: 240_000 })
      .toMatch(/Interleaved1F1B: step time about \d+ ms.*256 of 4096 microbatches were simulated and are drawn/);
    expect(studio.problems).toEqual([]);
  });

  test('while the worker has not answered, every control of the page works, and an earlier search is given up', async () => {
    const { page } = studio;
    await page.addInitScript(() => {
      const made: unknown[] = [];
      class SilentWorker {
        requests: unknown[] = [];
        isEnded = false;
        constructor() {
          made.push(this);
        }
        postMessage(request: unknown): void {
          this.requests.push(request);
        }
        terminate(): void {
          this.isEnded = true;
        }
      }
      Object.assign(globalThis, { Worker: SilentWorker, workersMade: made });
    });
    const workers = (): Promise<{ isEnded: boolean; asked: string[] }[]> =>
      page.evaluate(() =>
        (
          globalThis as unknown as { workersMade: { isEnded: boolean; requests: { name: string; draw: boolean }[] }[] }
        ).workersMade.map(({ isEnded, requests }) => ({
          isEnded,
          asked: requests.map(({ name, draw }) => `${name}${draw ? ' drawn' : ''}`),
        })),
      );
    await studio.open('schedule=AdaptiveV&ranks=8&microbatches=64&limit=20&activation=2&parameters=4');
    await expect.poll(() => studio.text('.diagnosis')).toContain('AdaptiveV is being simulated.');
    expect(await studio.text('.answer')).toMatch(
      /^Simulating 14 schedules for 8 ranks with 20 GB and 64 microbatches…/,
    );
    await expect.poll(workers).toHaveLength(2);
    expect((await workers()).map(({ asked }) => asked)).toEqual([['AdaptiveV drawn'], ['GPipe']]);

    await page.getByLabel('Memory of one microbatch on one stage, GB, slider').press('ArrowRight');
    await expect.poll(() => page.url()).toContain('activation=2.05');
    await expect.poll(workers).toHaveLength(4);
    expect((await workers()).map(({ isEnded }) => isEnded)).toEqual([true, true, false, false]);
    // What needs no search is shown at once.
    await page.selectOption('select', 'VHalf');
    await expect.poll(() => studio.text('.diagnosis')).toContain('VHalf: step time');
    await page.click('nav button:has-text("Files")');
    await expect.poll(async () => (await workers()).every(({ isEnded }) => isEnded)).toBe(true);
    expect(studio.problems).toEqual([]);
  });
});
