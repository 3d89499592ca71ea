/** @file What a watched rank keeps of the step under way: every action with its times, in a file that others read. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildSchedule, type LiveProgress } from '@pipewright/schedule';
import { progressFileOf, readProgress } from '@pipewright/schedule/internal';
import { nn, randn, scope, type Tensor } from '@pipewright/torch';
import { afterAll, describe, expect, test, vi } from 'vitest';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from '../stage/index.ts';
import { LIVE_FOLDER } from './live-feed.ts';
import { StepProgress } from './step-progress.ts';

const folder = mkdtempSync(join(tmpdir(), 'step-progress-'));
afterAll(() => rmSync(folder, { recursive: true }));

function read(name: string): LiveProgress | null {
  const bytes = readFileSync(join(name, progressFileOf(0)));
  return readProgress(0, new Float64Array(new Uint8Array(bytes).buffer));
}

describe('progress of a step', () => {
  test('a failed step of a watched runtime, also one whose actions are not recorded', () => {
    const live = join(folder, 'runtime');
    process.env[LIVE_FOLDER] = live;
    let failsAt = -1;
    let calls = 0;
    const lossFn = (y: Tensor): Tensor => {
      if (calls++ === failsAt) throw new RangeError('no loss today');
      return y.square().mean();
    };
    const schedule = buildSchedule('1F1B', { ranks: 1, microbatches: 4 });
    const runtime = new PipelineRuntime(new PipelineStage(new nn.Linear(3, 3), 0, 1), schedule, { lossFn });
    const step = (): void => scope(() => void runtime.step(randn([8, 3])));
    try {
      for (let i = 0; i < 9; i++) step();
      const whole = read(live)!;
      expect(whole).toMatchObject({ step: 8, training: true, failed: -1 });
      expect(whole.end).toBeGreaterThan(whole.begin);
      expect(whole.before).toBeCloseTo(whole.end - whole.begin, 9);
      expect(whole.stop.filter((time) => time >= 0)).toHaveLength(8);
      failsAt = calls + 2; // the forward of microbatch 2
      expect(step).toThrow('no loss today');
    } finally {
      delete process.env[LIVE_FOLDER];
    }
    const { start, stop, begin, end, failed, step: number } = read(live)!;
    expect({ number, end }).toEqual({ number: 9, end: -1 });
    expect(failed).toBeGreaterThanOrEqual(begin);
    // F0 B0 F1 B1 have ended, F2 has not.
    const begun = start.flatMap((time, i) => (time < 0 ? [] : [{ time, stop: stop[i]! }]));
    expect(begun).toHaveLength(5);
    for (const [i, one] of begun.slice(0, 4).entries()) {
      expect(one.stop).toBeGreaterThanOrEqual(one.time);
      expect(begun[i + 1]!.time).toBe(one.stop);
    }
    expect(begun[4]!.stop).toBe(-1);
  });

  test.each([
    ['long', 1000, 100],
    ['short', 1, 10],
    ['no', 0, 100],
  ])('actions of %s time: all are told in their order, with a look at the clock now and then', (_, ms, looks) => {
    const progress = StepProgress.open(folder, { rank: 0, origin: 0, actions: 100 })!;
    const walk = (): void => {
      for (let i = 0; i < 100; i++) {
        progress.begin(i);
        progress.end(i);
      }
    };
    const begin = performance.now();
    progress.beginStep(0, true, begin);
    walk();
    progress.endStep(begin + ms);
    progress.beginStep(1, true, performance.now());
    const clock = vi.spyOn(performance, 'now');
    try {
      walk();
      expect(clock).toHaveBeenCalledTimes(looks);
    } finally {
      clock.mockRestore();
    }
    const { start, stop } = read(folder)!;
    expect(stop).toHaveLength(100);
    for (let i = 1; i < 100; i++) expect(start[i]).toBe(stop[i - 1]);
    expect(stop.toSorted((a, b) => a - b)).toEqual(stop);
    progress.mapped.dispose();
  });

  test('an action inside of another ends before it; a file of an earlier runtime is replaced, not cut off', () => {
    const first = StepProgress.open(folder, { rank: 0, origin: 7, actions: 3 })!;
    expect(read(folder)).toBeNull();
    first.beginStep(4, false, performance.now());
    first.begin(0);
    first.received();
    first.begin(1);
    first.end(1);
    const { start, ready, stop, ...rest } = read(folder)!;
    expect(rest).toMatchObject({ rank: 0, step: 4, training: false, origin: 7, end: -1 });
    expect(start[1]).toBeGreaterThanOrEqual(ready[0]!);
    expect(stop).toEqual([-1, expect.any(Number)]);
    first.end(0);
    expect(read(folder)!.stop[0]).toBeGreaterThanOrEqual(stop[1]!);

    const second = StepProgress.open(folder, { rank: 0, origin: 7, actions: 1 })!;
    second.beginStep(0, true, performance.now());
    first.begin(2); // its memory is still there
    expect(read(folder)).toMatchObject({ step: 0, start: [] });
    expect(readdirSync(folder).filter((name) => name.endsWith('.new'))).toEqual([]);
    expect(StepProgress.open(join(folder, 'nowhere'), { rank: 0, origin: 0, actions: 1 })).toBeNull();
    first.mapped.dispose();
    second.mapped.dispose();
  });
});
