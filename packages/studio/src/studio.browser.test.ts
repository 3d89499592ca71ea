/** @file The page in a real browser: every view does what it is for, with the network off and with hostile files. */
import { buildSchedule, formatCsv } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { BrowserPage, chromiumPath } from '../testing/browser-page.ts';
import { plan } from '../testing/plan.ts';

describe.skipIf(chromiumPath === undefined)('studio', () => {
  const studio = new BrowserPage();

  test('first paint shows a schedule, the words before the numbers, and nothing is asked of the network', async () => {
    await studio.open();
    expect(await studio.page.textContent('.diagnosis')).toMatch(
      /^Fastest for 4 ranks and 8 microbatches: InterleavedZeroBubble, 25\.5 ms.*1F1B: step time 33 ms, 27\.3% idle/,
    );
    const filled = await studio.page.evaluate(() => {
      const canvas = document.querySelector<HTMLCanvasElement>('canvas.lanes')!;
      const { data } = canvas.getContext('2d')!.getImageData(90, 30, canvas.width - 100, 120);
      let blue = 0;
      for (let i = 0; i < data.length; i += 4)
        if (data[i] === 0x3f && data[i + 1] === 0x7f && data[i + 2] === 0xd6) blue++;
      return blue;
    });
    expect(filled).toBeGreaterThan(1000);
    expect(studio.requests).toEqual([]);
    expect(studio.problems).toEqual([]);
    const wide = await studio.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
    expect(wide).toBe(true);
  });

  test('settings change the picture and the address, and the address changes the settings', async () => {
    await studio.open();
    await studio.page.selectOption('select', 'ZB1P');
    await studio.page.fill('input[aria-label="Time of a message between ranks, ms"]', '0.5');
    await expect.poll(() => studio.page.url()).toContain('schedule=ZB1P');
    await expect.poll(() => studio.page.url()).toContain('comm=0.5');
    const before = await studio.page.textContent('.diagnosis');
    await studio.page.evaluate(() => (location.hash = 'schedule=GPipe&ranks=6&microbatches=12'));
    await expect.poll(() => studio.page.textContent('.diagnosis')).not.toBe(before);
    expect(await studio.page.inputValue('select')).toBe('GPipe');
  });

  test('which schedule for 8 ranks with 20 GB: three boxes from the bare page to the answer, and the table sorts', async () => {
    const { page } = studio;
    await studio.open();
    await page.getByLabel('ranks', { exact: true }).fill('8');
    await page.getByLabel('Memory that a rank may use, GB').fill('20');
    await page.getByLabel('Memory of one microbatch on one stage, GB', { exact: true }).fill('2.5');
    await page.getByLabel('optimizer states of a stage, GB').last().fill('4');
    await expect
      .poll(() => studio.text('.answer'))
      .toMatch(
        /^Fastest for 8 ranks with 20 GB and 8 microbatches: AdaptiveV, 29\.5 ms.*9 of 14 schedules do not fit\./,
      );
    await studio.picture('studio-explore.png');
    expect(await studio.text('.diagnosis')).toContain('1F1B: step time 45 ms');
    expect(await studio.text('.diagnosis')).toContain('does not fit, 4 GB short on rank 0');
    const column = (at: number): Promise<string[]> =>
      page.$$eval(`.compare tbody tr td:nth-child(${at})`, (cells) => cells.map((cell) => cell.textContent ?? ''));
    const byTime = await column(2);
    expect(byTime[0]).toBe('AdaptiveV');
    expect((await column(8)).slice(0, 6)).toEqual([
      'fits, fastest',
      ...['fits', 'fits', 'fits', 'fits'],
      expect.stringMatching(/^does not fit: [\d.]+ GB short on rank \d$/),
    ]);
    await page.click('.compare th button:has-text("peak memory")');
    const byPeak = await column(2);
    expect(byPeak.slice(0, 2)).toEqual(['VMin', 'VHalf']);
    expect(byPeak.toSorted()).toEqual(byTime.toSorted());
    await page.check('input[aria-label="show GPipe below"]');
    await expect.poll(() => page.url()).toContain('compare=GPipe');
    await page.click('button:has-text("show AdaptiveV")');
    await expect.poll(() => studio.text('.diagnosis')).toContain('AdaptiveV: step time');
    await studio.picture('studio-table.png', '.compare');
    // Ranks that are not alike, and stages that are not alike.
    await page.getByLabel('Memory that a rank may use, GB').fill('20, 20, 20, 20, 20, 20, 20, 14');
    await expect.poll(() => studio.text('.answer')).toContain('with 14 GB to 20 GB');
    await page.getByLabel('Time of a forward, ms', { exact: true }).fill('1, 1, 3');
    await expect.poll(() => page.url()).toContain('F=1,1,3');
    expect(studio.problems).toEqual([]);
  });

  test('a plan opens in Explore with its costs and limits, and is compared with the other schedules', async () => {
    const { page } = studio;
    await studio.open('', [{ name: 'plan.json', text: JSON.stringify(plan) }]);
    await expect.poll(() => studio.text('.diagnosis')).toContain('Costs from plan.json.');
    expect(await page.inputValue('select')).toBe('plan');
    const step = Number(/plan: step time ([\d.]+) ms/.exec((await studio.text('.diagnosis')) ?? '')?.[1]);
    expect(step).toBeCloseTo(plan.predicted.step * 1000, 0);
    expect(await page.getByLabel('Memory that a rank may use, GB').inputValue()).toBe('20, 20, 20, 16');
    expect(
      await page.$$eval('.compare tbody td:nth-child(2)', (cells) => cells.map((cell) => cell.textContent)),
    ).toEqual(expect.arrayContaining(['plan', '1F1B', 'ZB1P']));
    // The same by hand, from Files; what is damaged is refused with the reason.
    await studio.open('view=files');
    const give = (text: string): Promise<void> =>
      page.setInputFiles('input[type=file]', {
        name: 'p.json',
        mimeType: 'application/json',
        buffer: Buffer.from(text),
      });
    await give(JSON.stringify({ ...plan, ranks: 0 }));
    await expect.poll(() => studio.text('.problem')).toContain('ranks is 0');
    await give(JSON.stringify(plan));
    await expect.poll(() => studio.text('.diagnosis')).toContain('Costs from p.json.');
    expect(studio.problems).toEqual([]);
  });

  test('an action is selected by keys and by a click, and says what it waits for', async () => {
    await studio.open();
    await studio.page.focus('canvas.lanes');
    await studio.page.keyboard.press('ArrowRight');
    await expect.poll(() => studio.page.textContent('.details h2')).toBe('0F0');
    await studio.page.keyboard.press('ArrowDown');
    await expect.poll(() => studio.page.textContent('.details h2')).toBe('1F0');
    expect(await studio.page.textContent('.details')).toMatch(/waits for.*0F0 on rank 0.*activation/);
    expect(await studio.page.textContent('.details')).toContain('critical: no slack');
    expect(await studio.page.textContent('.details')).toContain('1 ms to 2 ms (1 ms)');
    const box = (await studio.page.locator('canvas.lanes').boundingBox())!;
    await studio.page.mouse.click(box.x + 86 + 8, box.y + 40);
    await expect.poll(() => studio.page.textContent('.details h2')).toBe('0F0');
    await studio.page.keyboard.press('Escape');
    await expect.poll(() => studio.page.textContent('.details h2')).toBe('idle by cause');
  });

  test('a dragged action breaks a rule at once, undo repairs it, and the result can be saved', async () => {
    await studio.open('view=edit&ranks=2&microbatches=3');
    await expect.poll(() => studio.page.textContent('[aria-live]')).toContain('The schedule is valid.');
    const box = (await studio.page.locator('canvas.lanes').boundingBox())!;
    const lane = box.y + 42;
    // The last action of rank 0, a backward, to the very beginning.
    await studio.page.mouse.move(box.x + box.width - 25, lane);
    await studio.page.mouse.down();
    await studio.page.mouse.move(box.x + 300, lane, { steps: 4 });
    await studio.page.mouse.move(box.x + 88, lane, { steps: 4 });
    await studio.page.mouse.up();
    await expect.poll(() => studio.page.textContent('[aria-live]')).toMatch(/broken/);
    expect(await studio.page.textContent('.violations')).toContain('forward-first');
    await studio.page.focus('canvas.lanes');
    await studio.page.keyboard.press('Control+z');
    await expect.poll(() => studio.page.textContent('[aria-live]')).toContain('The schedule is valid.');
    const [download] = await Promise.all([
      studio.page.waitForEvent('download'),
      studio.page.click('button:has-text("save CSV")'),
    ]);
    expect(download.suggestedFilename()).toBe('1F1B.csv');
  });

  test('pasted text: a deadlock is told, nonsense is refused with the reason', async () => {
    await studio.open('view=edit');
    await studio.page.click('summary');
    await studio.page.fill('textarea', '2F0,0F0\n1F0');
    await studio.page.click('.paste button');
    await expect.poll(() => studio.page.textContent('[aria-live]')).toMatch(/broken/);
    await studio.page.fill('textarea', '<img src=x onerror=alert(1)>');
    await studio.page.click('.paste button');
    await expect.poll(() => studio.page.textContent('.problem[role=alert]')).toContain('cannot read');
    expect(studio.problems).toEqual([]);
  });

  test('a file of a schedule opens for editing, in dark and light', async () => {
    await studio.open('', [{ name: 'x.csv', text: formatCsv(buildSchedule('VHalf', { ranks: 4, microbatches: 8 })) }]);
    expect(await studio.page.getAttribute('nav button[aria-current]', 'aria-current')).toBe('page');
    expect(await studio.page.textContent('nav button[aria-current]')).toBe('Edit');
    await studio.page.click('button[title="Light or dark"]');
    await expect.poll(() => studio.page.getAttribute('html', 'data-theme')).toBe('dark');
    expect(studio.problems).toEqual([]);
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
    await studio.open('', files);
    await studio.page.click('nav button:has-text("Files")');
    await studio.page.waitForSelector('.view');
    expect(await studio.page.evaluate(() => (globalThis as { hit?: number }).hit)).toBeUndefined();
    expect(studio.problems.filter((text) => !/Content Security Policy/.test(text))).toEqual([]);
    await studio.page.click('nav button:has-text("Explore")');
    await expect.poll(() => studio.page.textContent('.diagnosis')).toContain('step time');
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
      await studio.open(address, text === null ? [] : [{ name: `${image}.json`, text }]);
      await studio.page.click('nav button:has-text("Files")');
      await studio.page.waitForSelector('.view');
      const what = `${address} ${text?.slice(0, 60)}`;
      expect(await studio.page.evaluate(() => (globalThis as { hit?: number }).hit), what).toBeUndefined();
      expect(
        studio.problems.filter((problem) => !/Content Security Policy/.test(problem)),
        what,
      ).toEqual([]);
      // The page lives on.
      await studio.page.click('nav button:has-text("Live")');
      await expect.poll(() => studio.page.textContent('.view')).toContain('To watch one');
    }
    expect(studio.requests).toEqual([]);
  }, 240_000);

  test('787,456 actions: opened, panned and zoomed', async () => {
    await studio.open('schedule=Interleaved1F1B&ranks=64&stages=4&microbatches=512&lowered=1&comm=0.1');
    await studio.page.waitForSelector('canvas.lanes', { timeout: 120_000 });
    const times = await studio.page.evaluate(async () => {
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
    // Far from what a quiet machine needs (bench/studio.mjs), near enough to see a loop over all actions.
    expect(Math.min(...times)).toBeLessThan(100);
    expect(await studio.page.textContent('.diagnosis')).toContain('261120 messages');
    expect(studio.problems).toEqual([]);
  });
});
