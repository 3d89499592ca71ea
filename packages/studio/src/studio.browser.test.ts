/** @file The page in a real browser: every view does what it is for, with the network off and with hostile files. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildSchedule, formatCsv } from '@pipewright/schedule';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { pageWith, type StudioFile } from './server/page-file.ts';

const executablePath = process.env['PIPEWRIGHT_CHROMIUM'];
const folder = mkdtempSync(join(tmpdir(), 'studio-page-'));
let browser: Browser;
let page: Page;
let problems: string[] = [];
let requests: string[] = [];

/** Opens the exported page with files and settings. */
async function open(settings = '', files: readonly StudioFile[] = []): Promise<void> {
  const file = join(folder, 'page.html');
  writeFileSync(file, pageWith({ files, events: null }));
  await page.goto('about:blank');
  await page.goto(`${pathToFileURL(file).href}${settings === '' ? '' : `#${settings}`}`);
  await page.waitForSelector('header');
}

describe.skipIf(executablePath === undefined)('studio', () => {
  beforeAll(async () => {
    browser = await chromium.launch({
      executablePath: executablePath as string,
      args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'],
    });
  });
  afterAll(async () => {
    await browser.close();
    rmSync(folder, { recursive: true });
  });
  beforeEach(async () => {
    await page?.close();
    page = await browser.newPage({ viewport: { width: 1024, height: 640 } });
    problems = [];
    requests = [];
    page.on('pageerror', (error) => problems.push(error.message));
    page.on('console', (message) => {
      if (message.type() === 'error') problems.push(message.text());
    });
    page.on('request', (request) => {
      if (!/^(file|data|blob|about):/.test(request.url())) requests.push(request.url());
    });
  });

  test('first paint shows a schedule, the words before the numbers, and nothing is asked of the network', async () => {
    await open();
    expect(await page.textContent('.diagnosis')).toMatch(/^13\.6% of the ranks' time.*Step time 33, 27\.3% idle/);
    const filled = await page.evaluate(() => {
      const canvas = document.querySelector('canvas.lanes') as HTMLCanvasElement;
      const { data } = canvas.getContext('2d')!.getImageData(90, 30, canvas.width - 100, 120);
      let blue = 0;
      for (let i = 0; i < data.length; i += 4)
        if (data[i] === 0x3f && data[i + 1] === 0x7f && data[i + 2] === 0xd6) blue++;
      return blue;
    });
    expect(filled).toBeGreaterThan(1000);
    expect(requests).toEqual([]);
    expect(problems).toEqual([]);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    expect(wide).toBe(true);
  });

  test('settings change the picture and the address, and the address changes the settings', async () => {
    await open();
    await page.selectOption('select', 'ZB1P');
    await page.fill('input[aria-label="Time of a message between ranks"]', '0.5');
    await expect.poll(() => page.url()).toContain('schedule=ZB1P');
    await expect.poll(() => page.url()).toContain('comm=0.5');
    const before = await page.textContent('.diagnosis');
    await page.evaluate(() => (location.hash = 'schedule=GPipe&ranks=6&microbatches=12'));
    await expect.poll(() => page.textContent('.diagnosis')).not.toBe(before);
    expect(await page.inputValue('select')).toBe('GPipe');
  });

  test('which schedule for 8 ranks with 20 GB: the page says it, and the table sorts', async () => {
    await open('ranks=8&microbatches=24&activation=1.5&parameters=4&limit=20');
    expect(await page.textContent('.diagnosis')).toMatch(/Shortest within 20 for 8 ranks and 24 microbatches: \w+/);
    const names = (): Promise<string[]> =>
      page.$$eval('.compare tbody tr td:nth-child(2)', (cells) => cells.map((cell) => cell.textContent ?? ''));
    const byTime = await names();
    await page.click('.compare th button:has-text("peak memory")');
    const byPeak = await names();
    expect(byPeak).not.toEqual(byTime);
    expect(byPeak.toSorted()).toEqual(byTime.toSorted());
    await page.check('input[aria-label="show GPipe below"]');
    await expect.poll(() => page.url()).toContain('compare=GPipe');
  });

  test('an action is selected by keys and by a click, and says what it waits for', async () => {
    await open();
    await page.focus('canvas.lanes');
    await page.keyboard.press('ArrowRight');
    await expect.poll(() => page.textContent('.details h2')).toBe('0F0');
    await page.keyboard.press('ArrowDown');
    await expect.poll(() => page.textContent('.details h2')).toBe('1F0');
    expect(await page.textContent('.details')).toMatch(/waits for.*0F0 on rank 0.*activation/);
    expect(await page.textContent('.details')).toContain('critical: no slack');
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    await page.mouse.click(box.x + 86 + 8, box.y + 40);
    await expect.poll(() => page.textContent('.details h2')).toBe('0F0');
    await page.keyboard.press('Escape');
    await expect.poll(() => page.textContent('.details h2')).toBe('idle by cause');
  });

  test('a dragged action breaks a rule at once, undo repairs it, and the result can be saved', async () => {
    await open('view=edit&ranks=2&microbatches=3');
    await expect.poll(() => page.textContent('[aria-live]')).toContain('Every rule is kept.');
    const box = (await page.locator('canvas.lanes').boundingBox())!;
    const lane = box.y + 42;
    // The last action of rank 0, a backward, to the very beginning.
    await page.mouse.move(box.x + box.width - 25, lane);
    await page.mouse.down();
    await page.mouse.move(box.x + 300, lane, { steps: 4 });
    await page.mouse.move(box.x + 88, lane, { steps: 4 });
    await page.mouse.up();
    await expect.poll(() => page.textContent('[aria-live]')).toMatch(/broken/);
    expect(await page.textContent('.violations')).toContain('forward-first');
    await page.focus('canvas.lanes');
    await page.keyboard.press('Control+z');
    await expect.poll(() => page.textContent('[aria-live]')).toContain('Every rule is kept.');
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('button:has-text("save CSV")')]);
    expect(download.suggestedFilename()).toBe('1F1B.csv');
  });

  test('pasted text: a deadlock is told, nonsense is refused with the reason', async () => {
    await open('view=edit');
    await page.click('summary');
    await page.fill('textarea', '2F0,0F0\n1F0');
    await page.click('.paste button');
    await expect.poll(() => page.textContent('[aria-live]')).toMatch(/broken/);
    await page.fill('textarea', '<img src=x onerror=alert(1)>');
    await page.click('.paste button');
    await expect.poll(() => page.textContent('.problem[role=alert]')).toContain('cannot read');
    expect(problems).toEqual([]);
  });

  test('a file of a schedule opens for editing, in dark and light', async () => {
    await open('', [{ name: 'x.csv', text: formatCsv(buildSchedule('VHalf', { ranks: 4, microbatches: 8 })) }]);
    expect(await page.getAttribute('nav button[aria-current]', 'aria-current')).toBe('page');
    expect(await page.textContent('nav button[aria-current]')).toBe('Edit');
    await page.click('button[title="Light or dark"]');
    await expect.poll(() => page.getAttribute('html', 'data-theme')).toBe('dark');
    expect(problems).toEqual([]);
  });

  test.each([
    ['a script in a name', [{ name: '<script>globalThis.hit=1</script>', text: '{"traceEvents":[]}' }]],
    [
      'markup in an action',
      [
        {
          name: 'a.json',
          text: '{"traceEvents":[{"ph":"X","name":"PP:0F0<img src=x onerror=globalThis.hit=1>","ts":1,"dur":1}]}',
        },
      ],
    ],
    [
      'a recording that is none',
      [
        {
          name: 'a.json',
          text: '{"format":"pipewright-recording","version":1,"schedule":{"order":[["0F0"]]},"steps":[{"ranks":[]}]}',
        },
      ],
    ],
    ['a prototype', [{ name: 'a.json', text: '{"__proto__":{"traceEvents":[]},"constructor":{}}' }]],
    ['half a file', [{ name: 'a.json', text: '{"format":"pipewright-recording","ver' }]],
    [
      'ranks without end',
      [{ name: 'a.json', text: '{"traceEvents":[{"ph":"X","name":"PP:0F0","ts":1,"dur":1,"pid":1e300}]}' }],
    ],
    ['a schedule with a huge stage', [{ name: 'a.csv', text: '99999999999F0,0F99999999999' }]],
    ['zero bytes', [{ name: 'a.csv', text: '\0\0\0' }]],
  ] as const)('hostile: %s', async (_, files) => {
    await open('', files);
    await page.click('nav button:has-text("Files")');
    await page.waitForSelector('.view');
    expect(await page.evaluate(() => (globalThis as { hit?: number }).hit)).toBeUndefined();
    expect(problems.filter((text) => !/Content Security Policy/.test(text))).toEqual([]);
    await page.click('nav button:has-text("Explore")');
    await expect.poll(() => page.textContent('.diagnosis')).toContain('Step time');
  });

  test('forty-two more hostile files and addresses do nothing', async () => {
    const script = '<script>globalThis.hit=1</script>';
    const image = '<img src=x onerror=globalThis.hit=1>';
    const event = (fields: object): string =>
      JSON.stringify({ traceEvents: [{ ph: 'X', name: 'PP:0F0', ts: 1, dur: 1, pid: 0, ...fields }] });
    const recording = (fields: object): string =>
      JSON.stringify({
        format: 'pipewright-recording',
        version: 1,
        schedule: { order: [['0F0', '0B0']] },
        ranks: [],
        steps: [],
        ...fields,
      });
    const texts = [
      ...['', ' ', '{', '[', 'null', 'true', '1e999', '"text"', '[[[[', '{"a":'.repeat(2000), '\uFEFF', script, image],
      ...[
        '0F0,,,,,',
        '0F0\n0F0\n0F0',
        '-1F0',
        '0F-1',
        '0F0.5',
        '0X0',
        '(0F0;0B0',
        '=cmd()',
        'javascript:globalThis.hit=1',
      ],
      '0F0,'.repeat(50_000),
      `# name: ${script}\n0F0,0B0`,
      ...[
        { ts: -1e308 },
        { ts: 1e308, dur: 1e308 },
        { dur: -1 },
        { ts: null },
        { pid: -5 },
        { pid: '__proto__' },
        { name: `PP:0F0${script}` },
      ].map(event),
      JSON.stringify({ traceEvents: Array.from({ length: 5000 }, () => null) }),
      JSON.stringify({ format: 'pipewright-schedule', version: 1, name: image, order: [['0F0']] }),
      JSON.stringify({ format: 'pipewright-schedule', version: 99, order: [['0F0']] }),
      ...[
        { schedule: null },
        { schedule: { order: [[image]] } },
        { steps: [{ step: 0, ranks: [{ start: 'x' }] }] },
        { ranks: [{ process: image }] },
        { version: 2 },
      ].map(recording),
    ];
    const addresses = [
      'ranks=1e9&microbatches=1e9',
      `schedule=${encodeURIComponent(image)}`,
      'F=%E0%A4%A',
      'limit=-1&compare=__proto__,constructor',
    ];
    const cases = [
      ...texts.map((text) => ['', text] as const),
      ...addresses.map((address) => [address, null] as const),
    ];
    expect(cases.length).toBeGreaterThanOrEqual(42);
    for (const [address, text] of cases) {
      await open(address, text === null ? [] : [{ name: `${image}.json`, text }]);
      await page.click('nav button:has-text("Files")');
      await page.waitForSelector('.view');
      const what = `${address} ${text?.slice(0, 60)}`;
      expect(await page.evaluate(() => (globalThis as { hit?: number }).hit), what).toBeUndefined();
      expect(
        problems.filter((problem) => !/Content Security Policy/.test(problem)),
        what,
      ).toEqual([]);
      await page.click('nav button:has-text("Explore")');
      await expect.poll(() => page.textContent('.diagnosis'), { timeout: 20_000 }).toContain('Step time');
    }
    expect(requests).toEqual([]);
  }, 240_000);

  test('787,456 actions: opened, panned and zoomed', async () => {
    await open('schedule=Interleaved1F1B&ranks=64&stages=4&microbatches=512&lowered=1&comm=0.1');
    const times = await page.evaluate(async () => {
      const timeline = (
        globalThis as unknown as {
          pipewrightTimeline: { frameTimes: number[]; zoomBy(f: number, x: number): void; panBy(p: number): void };
        }
      ).pipewrightTimeline;
      timeline.frameTimes.length = 0;
      for (let i = 0; i < 60; i++) {
        if (i < 25) timeline.zoomBy(1.15, 500);
        else if (i < 45) timeline.panBy(20);
        else timeline.zoomBy(1 / 1.3, 500);
        await new Promise((done) => requestAnimationFrame(done));
      }
      return timeline.frameTimes;
    });
    expect(times.length).toBeGreaterThanOrEqual(50);
    expect(await page.textContent('.diagnosis')).toContain('261120 messages');
    expect(problems).toEqual([]);
  });
});
