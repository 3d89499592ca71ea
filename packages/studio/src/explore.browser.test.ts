/** @file Exploring in a real browser: sliders, messages, the critical path, idle time by cause, several schedules, zoom, memory curves. */
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';

describe.skipIf(chromiumPath === undefined)('explore', () => {
  const studio = new BrowserPage();
  const view = (): Promise<{ from: number; to: number }> =>
    studio.page.evaluate(() => {
      const { from, to } = (globalThis as unknown as { pipewrightTimeline: { view: { from: number; to: number } } })
        .pipewrightTimeline.view;
      return { from, to };
    });
  /** Pixels of a colour on a canvas, right of its labels. */
  const pixels = (canvas: string, color: number): Promise<number> =>
    studio.page.evaluate(
      ([selector, wanted]) => {
        const element = document.querySelector<HTMLCanvasElement>(selector)!;
        const { data } = element.getContext('2d')!.getImageData(90, 0, element.width - 90, element.height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4)
          if (((data[i]! << 16) | (data[i + 1]! << 8) | data[i + 2]!) === wanted) found++;
        return found;
      },
      [canvas, color] as const,
    );

  test('a slider changes times, memory and address while it is dragged, and can be moved by keys', async () => {
    const { page } = studio;
    await studio.open('ranks=4&microbatches=8');
    const slider = page.getByLabel('Time of a forward, ms, slider');
    const box = (await slider.boundingBox())!;
    await page.mouse.move(box.x + 2, box.y + box.height / 2);
    await page.mouse.down();
    const seen = new Set<string>();
    for (const share of [0.3, 0.6, 0.9]) {
      await page.mouse.move(box.x + box.width * share, box.y + box.height / 2, { steps: 2 });
      await expect.poll(async () => seen.has((await studio.text('.diagnosis')) ?? '')).toBe(false);
      seen.add((await studio.text('.diagnosis')) ?? '');
    }
    await page.mouse.up();
    expect(seen.size).toBe(3);
    await expect.poll(() => page.url()).toMatch(/[#&]F=[\d.]+/);
    const before = await studio.text('.diagnosis');
    await page.getByLabel('Memory of one microbatch on one stage, GB, slider').press('ArrowRight');
    await expect.poll(() => studio.text('.diagnosis')).not.toBe(before);
    await expect.poll(() => page.url()).toContain('activation=');
  });

  test('while a slider is dragged for long, the address keeps up', async () => {
    const { page } = studio;
    await studio.open('ranks=2&microbatches=2');
    await page.evaluate(async () => {
      const slider = document.querySelector<HTMLInputElement>('input[aria-label="Time of a forward, ms, slider"]')!;
      for (let i = 0; i < 260; i++) {
        slider.value = String(1 + 0.01 * (i % 100));
        slider.dispatchEvent(new Event('input', { bubbles: true }));
        await new Promise((done) => requestAnimationFrame(done));
      }
      slider.value = '3';
      slider.dispatchEvent(new Event('input', { bubbles: true }));
    });
    await expect.poll(() => page.url()).toContain('F=3');
  });

  test('the address has the selected action and the critical path: another reader sees the same', async () => {
    const { page } = studio;
    await studio.open('ranks=4&microbatches=8');
    await page.click('button:text-is("critical path")');
    await page.focus('canvas.lanes');
    for (const key of ['ArrowRight', 'ArrowDown', 'ArrowRight']) await page.keyboard.press(key);
    await expect.poll(() => studio.text('.details h2')).toBe('1F1');
    await expect.poll(() => page.url()).toMatch(/path=1&at=1\.\d+$/);
    await page.reload();
    await expect.poll(() => studio.text('.details h2')).toBe('1F1');
    expect(await page.getAttribute('button:text-is("critical path")', 'aria-pressed')).toBe('true');
    // A place where there is no action is none.
    await page.evaluate(() => (location.hash = 'ranks=2&microbatches=2&at=7.9'));
    await expect.poll(() => studio.text('.details h2')).toBe('idle by cause');
  });

  test('messages, critical path, idle time by cause, memory curves', async () => {
    const { page } = studio;
    await studio.open('ranks=4&microbatches=8&comm=0.3');
    expect(await studio.text('.legend')).not.toContain('Send forward');
    await page.click('button:text-is("messages")');
    await expect.poll(() => studio.text('.legend')).toContain('Send forward');
    await expect.poll(() => page.url()).toContain('lowered=1');
    await page.click('button:text-is("messages")');

    const dark = 0x1c2733;
    const plain = await pixels('canvas.lanes', dark);
    await page.click('button:text-is("critical path")');
    expect(await page.getAttribute('button:text-is("critical path")', 'aria-pressed')).toBe('true');
    await expect.poll(() => pixels('canvas.lanes', dark)).not.toBe(plain);

    // What a rank is idle is the sum of its causes.
    const rows = await page.$$eval('.details tbody tr', (all) =>
      all.map((row) => [...row.children].map((cell) => cell.textContent)),
    );
    expect(rows.map(([rank]) => rank)).toEqual(['0', '1', '2', '3']);
    for (const row of rows) for (const share of row.slice(1)) expect(share).toMatch(/^\d+%$/);
    for (const [, idle, ...causes] of rows.map((row) => row.map((text) => Number.parseInt(text, 10))))
      expect(Math.abs(idle! - causes.reduce((a, b) => a + b, 0))).toBeLessThanOrEqual(2); // rounded
    expect(rows[0]![5]).not.toBe('0%'); // with messages that take time, a rank waits for them
    expect(await pixels('canvas.memory', 0xc0186b)).toBeGreaterThan(100);
  });

  test('several schedules one below the other on one time axis; an action of the second is explained too', async () => {
    const { page } = studio;
    await studio.open('ranks=4&microbatches=8');
    const height = async (): Promise<number> => (await page.locator('canvas.lanes').boundingBox())!.height;
    const alone = await height();
    await page.check('input[aria-label="show GPipe below"]');
    await page.check('input[aria-label="show ZB1P below"]');
    await expect.poll(height).toBeGreaterThan(alone);
    expect(await page.getAttribute('canvas.lanes', 'aria-label')).toBe('Timeline of 1F1B, GPipe, ZB1P');
    await page.evaluate(() => scrollTo(0, 0)); // the boxes are below
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    const [axis, title, rest] = [22, 20, 6];
    const group = (box.height - axis - rest) / 3;
    await page.mouse.click(box.x + 92, box.y + axis + group + title + 6); // the first lane of the second
    await expect.poll(() => studio.text('.details h2')).toMatch(/^\dF0$/);
    expect(await studio.text('.details')).toContain('needed by');
  });

  test('below 900 pixels the timeline has the whole width; the theme stays after a reload', async () => {
    const { page } = studio;
    await page.setViewportSize({ width: 700, height: 640 });
    await studio.open('ranks=4&microbatches=8&limit=20&activation=2');
    const width = async (): Promise<number> => (await page.locator('canvas.lanes').boundingBox())!.width;
    await expect.poll(width).toBeGreaterThan(650);
    await page.setViewportSize({ width: 420, height: 640 });
    await expect.poll(width).toBeLessThan(420);
    await expect.poll(() => page.evaluate(() => document.documentElement.scrollWidth)).toBe(420); // only the table scrolls
    await page.click('button[title="Keys (?)"]');
    await page.click('button[title="Light or dark"]');
    await expect.poll(() => page.getAttribute('html', 'data-theme')).toBe('dark');
    await expect.poll(() => page.url()).toContain('theme=dark');
    await page.reload();
    await expect.poll(() => page.getAttribute('html', 'data-theme')).toBe('dark');
    expect(await studio.text('.compare th:last-child')).toBe('result');
  });

  test('an entry that is wrong is said beside its field; units are taken', async () => {
    const { page } = studio;
    await studio.open();
    const alert = page.locator('.wrong');
    const limit = page.getByLabel('Memory that a rank may use, GB');
    await limit.fill('20 GB');
    await expect.poll(() => page.url()).toContain('limit=20');
    await limit.fill('much');
    await expect.poll(() => alert.textContent()).toBe('numbers of at least 0, such as 2 or 1.5 GB');
    await limit.fill('20, 16');
    await expect.poll(() => alert.textContent()).toBe('2 values for 4 ranks: the last is used for the rest');
    await limit.fill('');
    await expect.poll(() => alert.count()).toBe(0);
    await page.getByLabel('ranks', { exact: true }).fill('0');
    await expect.poll(() => alert.textContent()).toBe('a whole number from 1 to 1024');
    await page.getByLabel('ranks', { exact: true }).fill('3');
    await expect.poll(() => alert.count()).toBe(0);
  });

  test('one stage, one rank and one microbatch are not several', async () => {
    await studio.open('ranks=1&microbatches=1&stages=2');
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/^Fastest for 1 rank and 1 microbatch: /);
    expect(await studio.text('.diagnosis')).toContain(', 1 stage per rank with the same work per rank');
  });

  test('wheel and keys zoom and pan, 0 shows the whole step', async () => {
    const { page } = studio;
    await studio.open('ranks=4&microbatches=8');
    const whole = await view();
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    await page.mouse.move(box.x + 400, box.y + 60);
    await page.mouse.wheel(0, -400);
    await expect.poll(async () => (await view()).to - (await view()).from).toBeLessThan(whole.to * 0.7);
    const zoomed = await view();
    await page.mouse.down();
    await page.mouse.move(box.x + 300, box.y + 60, { steps: 3 });
    await page.mouse.up();
    expect((await view()).from).toBeGreaterThan(zoomed.from);
    await page.focus('canvas.lanes');
    await page.keyboard.press('0');
    await expect.poll(view).toEqual(whole);
    await page.keyboard.press('+');
    await page.keyboard.press('d');
    const moved = await view();
    expect(moved.from).toBeGreaterThan(0);
    await page.keyboard.press('a');
    await page.keyboard.press('-');
    await expect.poll(async () => (await view()).to - (await view()).from).toBeGreaterThan(moved.to - moved.from);
  });
});
