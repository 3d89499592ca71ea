/** @file What a watched rank writes: every step with its time and its loss, however short; the times of actions now and then. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildSchedule, type LiveLine, LiveRunReader, parseLiveLine } from '@pipewright/schedule';
import { nn, randn, scope } from '@pipewright/torch';
import { afterAll, describe, expect, test } from 'vitest';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from '../stage/index.ts';
import { formatPlace, type RankPlace } from '../status/place.ts';
import { rankStatus } from '../status/rank-status.ts';
import { LIVE_FOLDER, LiveFeed } from './live-feed.ts';

const folder = mkdtempSync(join(tmpdir(), 'live-feed-'));
afterAll(() => rmSync(folder, { recursive: true }));

const run = { rank: 0, device: 'cpu', process: 'host:1', origin: 0, tokensPerStep: null };
const schedule = buildSchedule('1F1B', { ranks: 1, microbatches: 2 });
const details = { processBytes: 5, deviceBytes: null, heldBytes: null };
const column = [1, 2, 3, 4];
const actions = { start: column, ready: column, stop: column, bytes: column, tensors: column };

function linesOf(name: string): LiveLine[] {
  const texts = readFileSync(join(folder, name, 'rank-0.jsonl'), 'utf8')
    .trim()
    .split('\n');
  return texts.map((text) => parseLiveLine(text)!);
}

/** A rank with steps of one length, and lines that take `lineMs` each: what it writes, and what a reader makes of it. */
function feedSteps(
  name: string,
  count: number,
  ms: number,
  lineMs = 0.02,
): { lines: LiveLine[]; reader: LiveRunReader } {
  let clock = 0;
  const now = (): number => (clock += lineMs);
  const feed = LiveFeed.open(join(folder, name), { ...run, schedule: schedule.toJSON() }, now)!;
  for (let step = 0; step < count; step++) {
    const ended = { step, training: true, number: step, begin: step * ms, end: (step + 1) * ms, loss: step / 2 };
    const hasActions = feed.wantsActions(ended, 4);
    feed.step(ended, hasActions, () => ({ ...details, actions: hasActions ? actions : null }));
  }
  feed.close();
  const lines = linesOf(name);
  const reader = new LiveRunReader(10_000, 1000);
  for (const line of lines) reader.add(0, line);
  return { lines, reader };
}

describe('a live feed', () => {
  test.each([
    ['long steps', 300, 500],
    ['short steps', 3000, 1.5],
    ['steps of no time', 3000, 0],
  ])('%s: none is missing, each with its time and its loss', (name, count, ms) => {
    const { lines, reader } = feedSteps(name, count, ms);
    expect(lines.every((line) => line !== null)).toBe(true);
    expect(reader.steps.map(({ step }) => step)).toEqual(Array.from({ length: count }, (_, step) => step));
    expect(reader.steps.map(({ loss }) => loss)).toEqual(Array.from({ length: count }, (_, step) => step / 2));
    for (const { begin, end } of reader.steps) expect(end - begin).toBeCloseTo(ms, 6);
    expect(new Set(reader.steps.map(({ memoryBytes }) => memoryBytes))).toEqual(new Set([5]));
  });

  test('long steps are written one by one with the times of their actions, short ones together', () => {
    const long = feedSteps('long', 100, 2000).lines.filter(({ kind }) => kind !== 'run');
    expect(long).toHaveLength(100);
    expect(long.every((line) => line.kind === 'step' && line.actions !== null)).toBe(true);
    const short = feedSteps('short', 20_000, 0.1).lines;
    // Two seconds: the first steps, then a line every 50 ms, each perhaps with one of the steps before it.
    expect(short.length).toBeLessThan(2 * (2000 / 50 + 8 + 16) + 3);
    const timed = (lines: readonly LiveLine[]): number =>
      lines.filter((line) => line.kind === 'step' && line.actions !== null).length;
    expect(timed(short)).toBeGreaterThanOrEqual(8 + 2000 / 200 / 2);
    expect(timed(short)).toBeLessThanOrEqual(8 + (2000 / 200) * 2);
    // Lines of 1 ms: 4 of 1000 ms for those with actions, as many for those without.
    const costly = feedSteps('costly', 20_000, 0.1, 1).lines;
    expect(costly.filter(({ kind }) => kind === 'step').length).toBeLessThanOrEqual(8 + 2 * 4 + 2 * 4 * 2);
    expect(timed(costly)).toBeLessThanOrEqual(8 + 2 * 4 * 2);
  });

  test('all ranks time the same steps, although theirs do not take the same time', () => {
    const numbers = [1.4, 1.9, 40].map((ms) =>
      feedSteps(`rank ${ms}`, 4000, ms).lines.flatMap((line) =>
        line.kind === 'step' && line.actions !== null ? [line.step] : [],
      ),
    );
    const [, second, third] = numbers as [number[], number[], number[]];
    const common = numbers[0]!.filter((step) => second.includes(step) && third.includes(step));
    expect(common.length).toBeGreaterThanOrEqual(8 + 4000 / 512 - 1);
  });

  test('of long training steps all come with their actions, however many short evaluations there are between them', () => {
    const feed = LiveFeed.open(join(folder, 'mixed'), { ...run, schedule: schedule.toJSON() }, () => 0)!;
    let step = 0;
    let clock = 0;
    const end = (training: boolean, number: number, ms: number): void => {
      const ended = { step: step++, training, number, begin: clock, end: (clock += ms), loss: null };
      const hasActions = feed.wantsActions(ended, 4);
      feed.step(ended, hasActions, () => ({ ...details, actions: hasActions ? actions : null }));
    };
    for (let number = 0; number < 40; number++) {
      end(true, number, 1000);
      for (let i = 0; i < 25; i++) end(false, 25 * number + i, 1);
    }
    feed.close();
    const reader = new LiveRunReader(10_000, 10_000);
    for (const line of linesOf('mixed')) reader.add(0, line);
    const range = (count: number): number[] => Array.from({ length: count }, (_, i) => i);
    expect(reader.steps.map((one) => one.step)).toEqual(range(40));
    expect(reader.recording('training')!.steps.map((one) => one.step)).toEqual(range(40));
    expect(reader.evaluations.map((one) => one.step)).toEqual(range(1000));
    for (const one of reader.steps) expect(one.end - one.begin).toBeCloseTo(1000, 6);
    const timed = reader.recording('evaluation')!.steps;
    expect(timed.slice(0, 8).map((one) => one.step)).toEqual(range(8));
    expect(timed.length).toBeLessThan(100);
  });

  test('a watched runtime numbers training steps and evaluations apart', () => {
    process.env[LIVE_FOLDER] = join(folder, 'both');
    let fails = false;
    const lossFn = (y: ReturnType<typeof randn>): ReturnType<typeof randn> => {
      if (fails) throw new RangeError('no loss today');
      return y.square().mean();
    };
    const runtime = new PipelineRuntime(new PipelineStage(new nn.Linear(3, 3), 0, 1), schedule, { lossFn });
    const places: RankPlace[] = [];
    runtime.addHook({ beforeStep: () => void places.push(rankStatus.get()) });
    const x = randn([4, 3]);
    try {
      for (let step = 0; step < 30; step++)
        scope(() => {
          runtime.step(x);
          if (step % 3 === 2) runtime.eval(x);
        });
      fails = true; // what waits to be written is written then
      expect(() => scope(() => runtime.step(x))).toThrow('no loss today');
    } finally {
      delete process.env[LIVE_FOLDER];
    }
    const reader = new LiveRunReader(100, 100);
    for (const line of linesOf('both')) reader.add(0, line);
    expect(reader.steps.map(({ step }) => step)).toEqual(Array.from({ length: 30 }, (_, step) => step));
    expect(reader.evaluations.map(({ step }) => step)).toEqual(Array.from({ length: 10 }, (_, step) => step));
    expect(reader.steps.every(({ loss }) => loss !== null)).toBe(true);
    expect(reader.evaluates).toBe(true);
    expect(reader.recording()!.steps.every(({ training }) => training)).toBe(true);
    expect(places.slice(2, 5).map((place) => formatPlace({ ...place, action: '' }))).toEqual([
      'rank 0 works in step 2',
      'rank 0 works in evaluation 0',
      'rank 0 works in step 3',
    ]);
    expect(runtime.stepCount).toBe(41);
  });

  test('a watched runtime writes all its steps, those before a failed one too, and records few of them', () => {
    process.env[LIVE_FOLDER] = join(folder, 'runtime');
    let fails = false;
    const lossFn = (y: ReturnType<typeof randn>): ReturnType<typeof randn> => {
      if (fails) throw new RangeError('no loss today');
      return y.square().mean();
    };
    const stage = new PipelineStage(new nn.Linear(3, 3), 0, 1);
    const runtime = new PipelineRuntime(stage, schedule, { lossFn });
    const x = randn([4, 3]);
    const losses: number[] = [];
    try {
      for (let step = 0; step < 40; step++)
        scope(() => {
          const each: ReturnType<typeof randn>[] = [];
          runtime.step(x, { losses: each });
          losses.push(each.reduce((sum, loss) => sum + Number(loss.item()), 0) / each.length);
        });
      fails = true;
      expect(() => scope(() => runtime.step(x))).toThrow('no loss today');
    } finally {
      delete process.env[LIVE_FOLDER];
    }
    const lines = linesOf('runtime');
    const reader = new LiveRunReader();
    for (const line of lines) reader.add(0, line);
    expect(reader.steps.map(({ step }) => step)).toEqual(Array.from({ length: 40 }, (_, step) => step));
    expect(reader.steps.map(({ loss }) => loss)).toEqual(losses);
    const timed = lines.flatMap((line) => (line.kind === 'step' && line.actions !== null ? [line] : []));
    expect(timed.slice(0, 8).map(({ step }) => step)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
    expect(timed.length).toBeLessThan(40);
    for (const { actions: times, begin, end } of timed)
      times!.start.forEach((start, i) => {
        if (start < 0) return; // an action that others do in passing
        expect(start).toBeGreaterThanOrEqual(begin - 0.001);
        expect(times!.stop[i]).toBeGreaterThanOrEqual(start);
        expect(times!.stop[i]).toBeLessThanOrEqual(end + 0.001);
      });
    expect(runtime.recorder!.stepCount).toBe(41);
  });

  test('what was asked to be recorded is recorded, watched or not', () => {
    process.env[LIVE_FOLDER] = join(folder, 'recorded');
    const stage = new PipelineStage(new nn.Linear(3, 3), 0, 1);
    const lossFn = (y: ReturnType<typeof randn>): ReturnType<typeof randn> => y.square().mean();
    try {
      const runtime = new PipelineRuntime(stage, schedule, { lossFn, record: true });
      for (let step = 0; step < 30; step++) scope(() => void runtime.step(randn([4, 3])));
      expect(runtime.recorder!.gather()!.steps.map(({ step }) => step)).toEqual(
        Array.from({ length: 30 }, (_, step) => step),
      );
    } finally {
      delete process.env[LIVE_FOLDER];
    }
  });
});
