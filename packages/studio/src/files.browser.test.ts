/** @file Files in a real browser: each kind of file opens, steps are scrubbed through, every export is what it says. */
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { buildSchedule, formatCsv, LiveRunReader } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';
import { plan } from '../testing/plan.ts';
import { runLines } from '../testing/run-lines.ts';
import type { StudioFile } from './server/page-file.ts';

const testdata = (name: string): string => readFileSync(new URL(`../../../testdata/${name}`, import.meta.url), 'utf8');
const traces: readonly StudioFile[] = [0, 1].map((rank) => {
  const name = `interleaved-1f1b-${rank}.json`;
  return { name, text: testdata(`traces/${name}`) };
});

/** The recording of that run. */
function recording(): string {
  const reader = new LiveRunReader(10, 10);
  for (const { rank, line } of runLines()) reader.add(rank, line);
  return JSON.stringify(reader.recording());
}

describe.skipIf(chromiumPath === undefined)('files', () => {
  const studio = new BrowserPage();

  test('a recording: steps are scrubbed through, differences marked, its costs explored', async () => {
    const { page } = studio;
    await studio.open('', [{ name: 'run.json', text: recording() }]);
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/^run\.json: step 0 took 120 ms/);
    const slider = page.getByLabel('Recorded step', { exact: true });
    await slider.fill('2');
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/step 2 took 360 ms.*12 actions took over 10% longer/);
    await slider.press('ArrowLeft');
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/step 1 took 240 ms/);
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    await page.mouse.click(box.x + 90, box.y + 75);
    await expect
      .poll(() => studio.text('.diagnosis'))
      .toMatch(/0F0 on rank 0: planned .* ms, recorded 0\.00 to 20\.00 ms/);
    await page.click('button:has-text("explore with these costs")');
    await expect.poll(() => page.url()).toContain('F=25,25');
    expect(studio.problems).toEqual([]);
  });

  test("PyTorch's profiler traces of two processes: opened, scrubbed, saved as SVG, PNG and Perfetto", async () => {
    const { page } = studio;
    await studio.open('', traces);
    await expect
      .poll(() => studio.text('.diagnosis'))
      .toMatch(/^interleaved-1f1b-0\.json, .*step 0 took [\d.]+ ms.*clocks/);
    const first = await studio.text('.diagnosis');
    await page.getByLabel('Recorded step', { exact: true }).fill('1');
    await expect.poll(() => studio.text('.diagnosis')).not.toBe(first);

    const svg = await studio.download('SVG');
    expect(svg.name).toBe('interleaved-1f1b-0.svg');
    expect(svg.bytes.toString()).toMatch(/^<svg [\s\S]*3F3[\s\S]*<\/svg>\s*$/);
    const png = await studio.download('PNG');
    expect(png.name).toBe('interleaved-1f1b-0.png');
    expect(png.bytes.subarray(0, 8)).toEqual(Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]));
    expect(png.bytes.readUInt32BE(16)).toBeGreaterThan(500); // as wide as the timeline
    const perfetto = await studio.download('Perfetto');
    const { traceEvents } = JSON.parse(perfetto.bytes.toString()) as { traceEvents: { ph: string; name: string }[] };
    const names = traceEvents.filter(({ ph }) => ph === 'X').map(({ name }) => name);
    expect(names.filter((name) => /^\dF\d$/.test(name))).toHaveLength(16);
    expect(names.filter((name) => /^\dB\d$/.test(name))).toHaveLength(16);
    // What was saved opens again.
    await page.setInputFiles('input[type=file]', {
      name: 'again.json',
      mimeType: 'application/json',
      buffer: perfetto.bytes,
    });
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/^again\.json: step 0 took/);
    expect(studio.problems).toEqual([]);
  });

  test("PyTorch's CSV opens for editing; a trace without actions says what was looked for", async () => {
    const { page } = studio;
    await studio.open('view=files');
    const give = (name: string, text: string): Promise<void> =>
      page.setInputFiles('input[type=file]', { name, mimeType: 'text/plain', buffer: Buffer.from(text) });
    await give('other.json', '{"traceEvents":[{"ph":"X","name":"aten::mm","ts":1,"dur":2}]}');
    await expect.poll(() => studio.text('.problem')).toContain('looked for ranges such as PP:2F0');
    await give('order.csv', testdata('csv/torch-2.15-ZBVZeroBubble.csv'));
    await expect.poll(() => studio.text('[aria-live]')).toContain('The schedule is valid.');
    expect(await studio.text('nav button[aria-current]')).toBe('Edit');
  });

  test('a large schedule is read beside the page, which stays usable; it opens for editing, or says what is wrong', async () => {
    const { page } = studio;
    const large = formatCsv(buildSchedule('ZBVZeroBubble', { ranks: 16, microbatches: 300 }));
    await page.addInitScript(() => {
      // What is asked of a worker waits until the test lets it go.
      const { postMessage } = Worker.prototype;
      const released = new Promise<void>((resolve) => Object.assign(globalThis, { release: resolve }));
      Worker.prototype.postMessage = function (this: Worker, request: unknown) {
        void released.then(() => postMessage.call(this, request));
      };
    });
    const release = (): Promise<void> =>
      page.evaluate(() => (globalThis as unknown as { release: () => void }).release());
    const give = (name: string, text: string): Promise<void> =>
      page.setInputFiles('input[type=file]', { name, mimeType: 'text/csv', buffer: Buffer.from(text) });
    await studio.open('view=files');
    await give('large.csv', large);
    await expect.poll(() => studio.text('.opening')).toBe('large.csv is being opened.');
    await page.click('nav button:has-text("Explore")');
    await expect.poll(() => studio.text('.diagnosis')).toContain('1F1B: step time 33 ms');
    await release();
    await expect
      .poll(() => studio.text('[aria-live]'), { timeout: 60_000 })
      .toContain('The schedule is valid. Step time');
    expect(await studio.text('nav button[aria-current]')).toBe('Edit');
    expect(await page.locator('.opening').count()).toBe(0);
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Delete');
    await expect.poll(() => studio.text('[aria-live]'), { timeout: 60_000 }).toContain('0F0 deleted on rank 0');

    await page.click('nav button:has-text("Files")');
    await give('typo.csv', large.replace('7F20', '7X20'));
    await expect.poll(() => studio.text('.problem'), { timeout: 60_000 }).toMatch(/^typo\.csv: line 5 cell 99: .*7X20/);
    // Named on the command line, it opens the same way.
    await studio.open('', [{ name: 'large.csv', text: large }]);
    await expect.poll(() => studio.text('.opening')).toBe('large.csv is being opened.');
    await release();
    await expect
      .poll(() => studio.text('[aria-live]'), { timeout: 60_000 })
      .toContain('The schedule is valid. Step time');
    expect(studio.problems).toEqual([]);
  });

  test('compressed traces are unpacked; what is no text, cut off or too large says so', async () => {
    const { page } = studio;
    await studio.open('view=files');
    const give = (name: string, buffer: Buffer): Promise<void> =>
      page.setInputFiles('input[type=file]', { name, mimeType: '', buffer });
    const packed = gzipSync(traces[0]!.text);
    await give('rank-0.json.gz', packed);
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/^rank-0\.json: step 0 took/);
    await give('half.json.gz', packed.subarray(0, packed.length >> 1));
    await expect.poll(() => studio.text('.problem')).toMatch(/^half\.json\.gz cannot be unpacked: /);
    await give('model.pt2', Buffer.from('PK\x03\x04\0\0'));
    await expect.poll(() => studio.text('.problem')).toMatch(/^model\.pt2 is not text; give recordings, plans/);
    // 600 MB of blanks in half a megabyte.
    await give('bomb.json.gz', Buffer.concat(Array.from({ length: 60 }, () => gzipSync(Buffer.alloc(1e7, ' ')))));
    await expect
      .poll(() => studio.text('.problem'), { timeout: 60_000 })
      .toMatch(/^bomb\.json\.gz (has .* bytes or more; at most 536,870,912|cannot be unpacked)/);
    expect(await studio.text('.diagnosis')).toMatch(/^rank-0\.json/); // what was open stays
    expect(studio.problems).toEqual([]);
  });

  test('files are dropped anywhere on the page, in any view, and say that they will be opened', async () => {
    const { page } = studio;
    const drag = (type: string, name: string, texts: readonly (readonly [string, string])[]): Promise<void> =>
      page.evaluate(
        ([what, target, files]) => {
          const dataTransfer = new DataTransfer();
          for (const [file, text] of files) dataTransfer.items.add(new File([text], file));
          const event = new DragEvent(what, { dataTransfer, bubbles: true, cancelable: true });
          document.querySelector(target)!.dispatchEvent(event);
        },
        [type, name, texts] as const,
      );
    const csv = testdata('csv/torch-2.15-ZBVZeroBubble.csv');
    await studio.open('view=files');
    expect(await studio.text('.drop')).toContain('Drop files anywhere on this page');
    await drag('dragover', 'header', [['order.csv', csv]]);
    await expect.poll(() => studio.text('.dropping')).toBe('Drop to open');
    await drag('dragleave', 'header', []);
    await expect.poll(() => page.locator('.dropping').count()).toBe(0);
    await drag('drop', 'header', [['order.csv', csv]]);
    await expect.poll(() => studio.text('nav button[aria-current]')).toBe('Edit');
    await expect.poll(() => studio.text('[aria-live]')).toContain('The schedule is valid.');
    await drag('drop', 'canvas.lanes', [['plan.json', JSON.stringify(plan)]]);
    await expect.poll(() => studio.text('.diagnosis')).toContain('Costs from plan.json.');
    await drag(
      'drop',
      'main',
      traces.map(({ name, text }) => [name, text] as const),
    );
    await expect.poll(() => studio.text('.diagnosis')).toMatch(/^interleaved-1f1b-0\.json, .*step 0 took/);
    // What cannot be opened is said, and what was open stays.
    await drag('drop', 'main', [
      ['a.csv', csv],
      ['b.csv', csv],
    ]);
    await expect.poll(() => studio.text('.problem')).toMatch(/^Open one plan or schedule at a time/);
    expect(await studio.text('.diagnosis')).toMatch(/^interleaved-1f1b-0\.json/);
    await drag('drop', 'main', [['noise.bin', '\0\x01']]);
    await expect.poll(() => studio.text('.problem')).toContain('noise.bin');
    expect(studio.problems).toEqual([]);
    expect(studio.requests).toEqual([]);
  });

  test('Explore saves SVG, PNG and Perfetto too', async () => {
    await studio.open('schedule=ZB1P&ranks=3&microbatches=6');
    expect((await studio.download('SVG')).bytes.toString()).toContain('2W5');
    expect((await studio.download('PNG')).bytes.subarray(1, 4).toString()).toBe('PNG');
    const { traceEvents } = JSON.parse((await studio.download('Perfetto')).bytes.toString()) as {
      traceEvents: { name: string }[];
    };
    expect(traceEvents.map(({ name }) => name)).toContain('2W5');
  });
});
