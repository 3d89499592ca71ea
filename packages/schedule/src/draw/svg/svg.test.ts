import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../../generate/build-schedule.ts';
import { Schedule } from '../../model/schedule.ts';
import { simulate } from '../../simulate/simulate.ts';
import { renderSvg } from './svg.ts';

/** Elements of a picture: name, attributes and text; throws where tags do not match, which XML forbids. */
function parse(
  svg: string,
): { readonly name: string; readonly attributes: Record<string, string>; readonly text: string }[] {
  const found: { name: string; attributes: Record<string, string>; text: string }[] = [];
  const open: string[] = [];
  for (const match of svg.matchAll(/<(\/?)([a-zA-Z]+)((?:\s+[\w:-]+="[^"<>]*")*)\s*(\/?)>([^<]*)/g)) {
    const [, close, name, attributes, empty, text] = match as unknown as [
      string,
      string,
      string,
      string,
      string,
      string,
    ];
    if (close === '/') {
      expect(open.pop()).toBe(name);
      continue;
    }
    if (empty === '') open.push(name);
    found.push({
      name,
      attributes: Object.fromEntries([...attributes.matchAll(/([\w:-]+)="([^"]*)"/g)].map((a) => [a[1]!, a[2]!])),
      text,
    });
  }
  expect(open).toEqual([]);
  return found;
}

const texts = (svg: string): string[] =>
  parse(svg)
    .filter((e) => e.name === 'text')
    .map((e) => e.text);
const oneFOneB = buildSchedule('1F1B', { ranks: 4, microbatches: 8 });

describe('renderSvg', () => {
  test('draws every action once, to scale, in the lane of its rank', () => {
    const bars = parse(renderSvg(oneFOneB)).filter(
      (e) => e.name === 'rect' && e.attributes['y'] !== undefined && Number(e.attributes['height']) === 34,
    );
    expect(bars).toHaveLength(4 * 8 * 2);
    const widths = [...new Set(bars.map((bar) => Math.round(Number(bar.attributes['width']) + 1)))].sort(
      (a, b) => a - b,
    );
    expect(widths[1]! / widths[0]!).toBeCloseTo(2, 1);
    expect(new Set(bars.map((bar) => bar.attributes['y'])).size).toBe(4);
  });

  test('says what it shows', () => {
    const svg = renderSvg(oneFOneB);
    expect(texts(svg).filter((text) => !/^\d[FB]\d$/.test(text))).toMatchInlineSnapshot(`
      [
        "1F1B: 4 ranks, 4 stages, 8 microbatches",
        "makespan 33   ·   bubble 27.3% of the makespan, 27.3% of the span   ·   peak memory 4 (rank 0)",
        "Forward",
        "Full backward",
        "Idle (bubble)",
        "Data to another rank",
        "0",
        "5",
        "10",
        "15",
        "20",
        "25",
        "30",
        "time",
        "busy",
        "peak",
        "rank 0",
        "72.7%",
        "4",
        "rank 1",
        "72.7%",
        "3",
        "rank 2",
        "72.7%",
        "2",
        "rank 3",
        "72.7%",
        "1",
        "Memory held per rank, in activations of one microbatch on one stage",
        "0",
        "2",
        "4",
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
      ]
    `);
    expect(texts(svg)).toContain('3B7');
    expect(svg.includes('<title>2B3 on rank 2: 15 to 17</title>')).toBe(true);
  });

  test('has one arrow per message, from departure to arrival', () => {
    const arrows = (svg: string): string[] => [...svg.matchAll(/<path d="(M[^"]*)" marker-end/g)].map((m) => m[1]!);
    expect(arrows(renderSvg(oneFOneB))).toHaveLength(3 * 8 * 2);
    expect(renderSvg(oneFOneB, { arrows: false })).not.toContain('Data to another rank');
    const slanted = arrows(renderSvg(simulate(oneFOneB, { comm: 0.5 })))[0]!;
    const [x1, , x2] = slanted.match(/[\d.]+/g)!.map(Number) as [number, number, number];
    expect(x2).toBeGreaterThan(x1);
  });

  test('labels whole actions where they fit, microbatches where only those fit, nothing at 64 ranks', () => {
    expect(texts(renderSvg(oneFOneB, { width: 600 }))).toContain('7');
    expect(texts(renderSvg(oneFOneB, { width: 600 }))).not.toContain('0F0');
    expect(texts(renderSvg(oneFOneB, { labels: 'none' }))).not.toContain('0F0');
    const large = renderSvg(buildSchedule('1F1B', { ranks: 64, microbatches: 128 }));
    expect(texts(large)).not.toContain('0F0');
    expect(texts(large)).toContain('rank 63');
    expect(large.length).toBeLessThan(600_000);
  });

  test('samples lanes with several actions per pixel, each kind by its share of time', () => {
    const svg = renderSvg(buildSchedule('1F1B', { ranks: 8, microbatches: 1024 }));
    expect(svg.length).toBeLessThan(120_000);
    const painted = (tone: string): number => {
      const dashes = new RegExp(`stroke="${tone}"[^>]* d="([^"]*)"`).exec(svg)![1]!;
      return [...dashes.matchAll(/h([\d.]+)/g)].reduce((sum, match) => sum + Number(match[1]), 0);
    };
    expect(painted('#da701f') / painted('#3f7fd6')).toBeCloseTo(2, 1);
  });

  test('splits overlapped pairs, and lightens later stages', () => {
    const svg = renderSvg(buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 }));
    expect(texts(svg)).toEqual(
      expect.arrayContaining(['Overlapped F and B', 'Lighter: later stage of the rank', '0F3', '3B1']),
    );
    expect(new Set([...svg.matchAll(/<g fill="(#\w+)">/g)].map((m) => m[1])).size).toBe(8);
  });

  test('themes', () => {
    expect(renderSvg(oneFOneB)).toContain('prefers-color-scheme:dark');
    expect(renderSvg(oneFOneB, { theme: 'dark' })).not.toContain('prefers-color-scheme');
    expect(renderSvg(oneFOneB, { theme: 'dark' })).toContain('--pw-paper:#10171f');
    expect(renderSvg(oneFOneB, { theme: 'light' })).not.toContain('#10171f');
  });

  test('escapes names and stays well formed for odd schedules', () => {
    const odd = Schedule.from({
      name: 'a<b>&"c"',
      order: [
        ['0F0', '0B0'],
        ['1F0', '1B0'],
      ],
    });
    expect(renderSvg(odd)).toContain('a&lt;b&gt;&amp;&quot;c&quot;: 2 ranks');
    for (const schedule of [
      odd,
      Schedule.from({ order: [[]] }),
      buildSchedule('ForwardOnly', { ranks: 3, microbatches: 1 }),
    ])
      parse(renderSvg(schedule));
    for (const ranks of [1, 8, 16, 32, 100, 300]) parse(renderSvg(buildSchedule('GPipe', { ranks, microbatches: 4 })));
  });

  test('is the same text every time', () => {
    expect(renderSvg(oneFOneB)).toBe(renderSvg(buildSchedule('1F1B', { ranks: 4, microbatches: 8 })));
  });

  test('refuses what it does not know', () => {
    expect(() => renderSvg(oneFOneB, { them: 'dark' } as object)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderSvg: unknown option 'them'; did you mean 'theme'?]`,
    );
    expect(() => renderSvg(oneFOneB, { theme: 'drak' as 'dark' })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderSvg: theme is 'drak'; did you mean 'dark'?]`,
    );
    expect(() => renderSvg(oneFOneB, { width: 10 })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderSvg: width must be a number of at least 320, got 10]`,
    );
  });
});
