/** @file Editing in a real browser: every change can be undone and saved, a deadlock is drawn; controls have names, themes contrast. */
import { buildSchedule, parseCsv, Schedule, simulate } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';

describe.skipIf(chromiumPath === undefined)('edit', () => {
  const studio = new BrowserPage();
  const said = (): Promise<string | null> => studio.text('[aria-live]');

  test('delete, add, move by keys, undo and redo; CSV and JSON that run', async () => {
    const { page } = studio;
    await studio.open('view=edit&ranks=2&microbatches=3');
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Delete');
    await expect.poll(said).toContain('0F0 deleted on rank 0');
    await expect.poll(said).toMatch(/rules? (is|are) broken/);
    await page.keyboard.press('Control+z');
    await expect.poll(said).toContain('The schedule is valid.');
    await page.keyboard.press('Control+Shift+Z');
    await expect.poll(said).toContain('0F0 deleted');
    await page.keyboard.press('Control+z');
    await expect.poll(() => studio.text('.details')).toContain('selected: 0F0 on rank 0, slot 0');
    await page.keyboard.press('Alt+ArrowRight');
    await expect.poll(said).toContain('0F0 moved on rank 0');
    await page.getByLabel('Action to add before the selected one').fill('nonsense');
    await page.click('button:text-is("insert")');
    await expect.poll(() => studio.text('[role=alert]')).toContain('nonsense');
    await page.getByLabel('Action to add before the selected one').fill('0F9');
    await page.click('button:text-is("insert")');
    await expect.poll(said).toContain('0F9 added on rank 0');
    await page.click('button:text-is("undo")');
    await page.click('button:text-is("undo")');
    await expect.poll(said).toContain('The schedule is valid.');
    const wanted = buildSchedule('1F1B', { ranks: 2, microbatches: 3 }).toString();
    const csv = await studio.download('save CSV');
    expect(parseCsv(csv.bytes.toString()).toString()).toBe(wanted);
    const json = await studio.download('save JSON');
    expect(Schedule.fromJSON(json.bytes.toString()).toString()).toBe(wanted);
    expect(simulate(Schedule.fromJSON(json.bytes.toString())).makespan).toBeGreaterThan(0);
  });

  test('keys reach every rank; what was pasted can be undone; the pointer names an action', async () => {
    const { page } = studio;
    await studio.open('view=edit&ranks=3&microbatches=3');
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown'); // there is no rank below
    await page.keyboard.press('Delete');
    await expect.poll(said).toContain('2F0 deleted on rank 2');
    await page.click('summary');
    await page.fill('textarea', '0F0,0B0');
    await page.click('.paste button');
    await expect.poll(said).toMatch(/The schedule is valid\..*pasted/);
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.click('button:text-is("undo")');
    await page.click('button:text-is("redo")');
    await expect.poll(() => studio.text('.details')).toContain('selected: 0F0 on rank 0');
    await page.fill('textarea', ['0F0,0B0', '1F0,1B0', '2F0,2B0', '3F0,3B0'].join('\n'));
    await page.click('.paste button');
    await page.focus('canvas.lanes');
    for (const key of ['ArrowRight', 'ArrowDown', 'ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
    await expect.poll(() => studio.text('.details')).toContain('selected: 3F0 on rank 3');
    await page.keyboard.press('Control+z'); // rank 3 is gone, and with it what was selected
    await expect.poll(() => studio.text('.details')).not.toContain('selected:');
    await page.keyboard.press('ArrowRight');
    await expect.poll(() => studio.text('.details')).toContain('selected: 0F0 on rank 0');
    await page.click('button:text-is("undo")');
    await expect.poll(said).toContain('2F0 deleted on rank 2');
    await page.click('button:text-is("undo")');
    await expect.poll(said).toMatch(/The schedule is valid\..*opened/);
    await page.click('button:text-is("redo")');
    await page.click('button:text-is("redo")');
    await expect.poll(said).toContain('pasted');
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    await page.mouse.move(box.x + 100, box.y + 35);
    await expect
      .poll(() => page.locator('canvas.lanes').getAttribute('title'))
      .toMatch(/^0F0 on rank 0: 0 to [\d.]+ ms$/);
  });

  test('every change says the step time, the idle share and the peak at once, and draws the memory', async () => {
    const { page } = studio;
    await studio.open('view=edit&ranks=2&microbatches=3');
    await expect.poll(said).toContain('Step time 12 ms, 25.0% idle, peak 2 GB.');
    await page.click('summary');
    await page.fill('textarea', '0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2');
    await page.click('.paste button');
    await expect.poll(said).toMatch(/The schedule is valid\. Step time 12 ms, 25\.0% idle, peak 3 GB\./);
    expect(await page.locator('canvas.memory').count()).toBe(1);
    // A backward that goes before one whose gradient comes earlier makes the step longer.
    await page.focus('canvas.lanes');
    for (let i = 0; i < 6; i++) await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Alt+ArrowLeft');
    await expect.poll(said).toContain('Step time 14 ms, 35.7% idle, peak 3 GB. Last change: 0B2 moved on rank 0.');
  });

  test('undo and redo by keys wherever the focus is, but in fields of text, which have an undo of their own', async () => {
    const { page } = studio;
    await studio.open('view=edit&ranks=2&microbatches=3');
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.click('button:text-is("delete")');
    await expect.poll(said).toContain('0F0 deleted on rank 0');
    await page.click('button:text-is("delete")'); // the next one is selected
    await expect.poll(said).toContain('0F1 deleted on rank 0');
    await page.keyboard.press('Control+z');
    await expect.poll(said).toContain('0F0 deleted on rank 0');
    await page.keyboard.press('Control+z');
    await expect.poll(said).toContain('The schedule is valid.');
    await page.keyboard.press('Control+y');
    await expect.poll(said).toContain('0F0 deleted on rank 0');
    await page.click('summary');
    await page.fill('textarea', '0F0,0B0');
    await page.press('textarea', 'Control+z');
    await expect.poll(() => page.inputValue('textarea')).toBe('');
    expect(await said()).toContain('0F0 deleted on rank 0');
  });

  test('edits are there when the reader comes back from another view', async () => {
    const { page } = studio;
    await studio.open('view=edit&ranks=2&microbatches=3');
    await expect.poll(said).toMatch(/^1F1B: /);
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Delete');
    await expect.poll(said).toContain('0F0 deleted on rank 0');
    await page.click('nav button:has-text("Explore")');
    await page.click('nav button:has-text("Edit")');
    await expect.poll(said).toMatch(/^1F1B \(edited\): .*0F0 deleted on rank 0/);
  });

  test('a deadlock is drawn as a cycle between the ranks', async () => {
    const { page } = studio;
    await studio.open('view=edit');
    await page.click('summary');
    const red = (): Promise<number> =>
      page.evaluate(() => {
        const canvas = document.querySelector<HTMLCanvasElement>('canvas.lanes')!;
        const { data } = canvas.getContext('2d')!.getImageData(90, 0, canvas.width - 90, canvas.height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4)
          if (data[i] === 0xc6 && data[i + 1] === 0x28 && data[i + 2] === 0x28) found++;
        return found;
      });
    expect(await red()).toBe(0);
    await page.fill('textarea', '2F0,0F0,2B0,0B0\n1F0,1B0');
    await page.click('.paste button');
    await expect.poll(said).toMatch(/broken/);
    expect(await studio.text('.violations')).toMatch(/deadlock/);
    await expect.poll(red).toBeGreaterThan(50);
    // There are no times, so none are shown.
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    await page.mouse.move(box.x + 100, box.y + 35);
    await expect.poll(() => page.locator('canvas.lanes').getAttribute('title')).toBe('2F0 on rank 0');
  });

  test('every control has a name, focus is visible, the page is used without a mouse, dark follows the system', async () => {
    const { page } = studio;
    await page.emulateMedia({ colorScheme: 'dark' });
    await studio.open();
    expect(await page.getAttribute('html', 'data-theme')).toBe('dark');
    for (const view of ['Explore', 'Edit', 'Live', 'Files']) {
      await page.getByRole('button', { name: view, exact: true }).click();
      const unnamed = await page.evaluate(() =>
        [...document.querySelectorAll('button, input, select, textarea, canvas')]
          .filter((element) => {
            const label = element.getAttribute('aria-label') ?? element.textContent ?? '';
            const labels = (element as HTMLInputElement).labels;
            return label.trim() === '' && (labels === null || labels === undefined || labels.length === 0);
          })
          .map((element) => element.outerHTML),
      );
      expect(unnamed, view).toEqual([]);
    }
    await page.keyboard.press('?');
    await expect.poll(() => studio.text('.help')).toContain('undo and redo');
    await page.keyboard.press('Escape');
    await expect.poll(() => page.locator('.help').count()).toBe(0);
    const contrast = await page.evaluate(() => {
      const light = (color: string): number => {
        const [r = 0, g = 0, b = 0] = (color.match(/[\d.]+/g) ?? []).map((value) => Number(value) / 255);
        const linear = (value: number): number => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
      };
      return ['dark', 'light'].map((theme) => {
        document.documentElement.dataset['theme'] = theme;
        const style = getComputedStyle(document.body);
        const [a, b] = [light(style.color), light(style.backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      });
    });
    for (const ratio of contrast) expect(ratio).toBeGreaterThan(7);
  });
});
