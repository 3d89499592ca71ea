/** @file A step that has not ended: what is done, what is under way, who waits for whom, whatever the moment. */
import { buildSchedule, type LiveProgress, type LiveStatus, lower, simulate } from '@pipewright/schedule';
import { recordedPlaces } from '@pipewright/schedule/internal';
import { describe, expect, test } from 'vitest';
import { sayUnfinished, sayUnfinishedAction, unfinishedStep } from './unfinished.ts';

const schedule = lower(buildSchedule('1F1B', { ranks: 3, microbatches: 4 }));
const simulation = simulate(schedule, { F: 10, B: 20 });

/** What the ranks have done at a moment of the simulated step, on clocks that differ; an action waits from the end of the one before. */
function progressAt(time: number, fields: Partial<LiveProgress> = {}): LiveProgress[] {
  return schedule.order.map((row, rank): LiveProgress => {
    const origin = -1000 * rank;
    const at = (moment: number): number => (moment <= time ? 500 + moment - origin : -1);
    let free = 0;
    const entries = recordedPlaces(row).map(({ action, slot }) => {
      if (!['F', 'B'].includes(action.kind)) return [-1, -1, -1] as const;
      const { start, end } = simulation.at(rank, slot)!;
      const entry = [at(free), at(start), at(end)] as const;
      free = end;
      return entry;
    });
    const count = entries.findLastIndex(([start]) => start !== -1) + 1;
    const column = (which: 0 | 1 | 2): number[] => entries.slice(0, count).map((entry) => entry[which]);
    return {
      ...{ rank, step: 7, training: true, origin, begin: 500 - origin, end: -1, before: 0, failed: -1, from: 0 },
      ...{ start: column(0), ready: column(1), stop: column(2) },
      ...fields,
    };
  });
}

const place = (rank: number, action: string, waitingFor: number | null): LiveStatus['places'][number] => ({
  ...{ rank, state: waitingFor === null ? 'working' : 'waiting', step: 7, slot: 0, action, waitingFor, since: 0 },
});

describe('a step that has not ended', () => {
  test('what was done is drawn with its times, what is under way up to now', () => {
    // At 35: 0F0 to 0F2 are done, rank 1 has done 1F0 and 1F1, rank 2 is in the middle of 2B0.
    const status: LiveStatus = {
      ...{ kind: 'status', ended: null, time: 0, clock: 535, progress: progressAt(35) },
      places: [place(0, '0RECV_B0', 1), place(1, '1RECV_B0', 2), place(2, '2B0', null)],
    };
    const step = unfinishedStep(schedule, status)!;
    expect(sayUnfinished(step, false)).toEqual([
      'Rank 2 has done 1 of 8 actions of step 7, and is in 2B0.',
      'Rank 0 has done 3 of 8 actions of step 7, and waits for rank 1 (0RECV_B0).',
      'Rank 1 has done 2 of 8 actions of step 7, and waits for rank 2 (1RECV_B0).',
    ]);
    const texts = step.lanes.lanes.map(({ rank, main }) =>
      Array.from({ length: main.count }, (_, i) => {
        const { kind, stage, microbatch } = schedule.at(rank, main.slot[i]!)!;
        return `${stage}${kind}${microbatch} ${main.start[i]}-${main.end[i]}`;
      }),
    );
    expect(texts).toEqual([
      ['0F0 0-10', '0F1 10-20', '0F2 20-30'],
      ['1F0 10-20', '1F1 20-30'],
      ['2F0 20-30', '2B0 30-35'],
    ]);
    expect(step.lanes.makespan).toBe(35);
    const [waits, , works] = step.standings;
    expect(sayUnfinishedAction(step, waits!.cell!)).toBe('0RECV_B0 on rank 0: since 30.00 ms, not finished.');
    expect(sayUnfinishedAction(step, works!.cell!)).toBe('2B0 on rank 2: since 30.00 ms, not finished.');
    const first = schedule.order[0]!.findIndex((action) => action?.kind === 'F');
    expect(sayUnfinishedAction(step, { rank: 0, slot: first })).toBe('0F0 on rank 0: 0.00 to 10.00 ms.');
  });

  test('at every moment the ranks have done what the simulation says', () => {
    for (let time = 0; time <= simulation.makespan; time += 2.5) {
      const status: LiveStatus = {
        ...{ kind: 'status', ended: null, time: 0, clock: 500 + time, progress: progressAt(time), places: [] },
      };
      const { standings, lanes } = unfinishedStep(schedule, status)!;
      standings.forEach(({ rank, done }) => {
        const ends = schedule.order[rank]!.flatMap((action, slot) =>
          action !== null && ['F', 'B'].includes(action.kind) ? [simulation.at(rank, slot)!.end] : [],
        );
        expect(done, `rank ${rank} at ${time}`).toBe(ends.filter((end) => end <= time).length);
      });
      expect(lanes.makespan).toBeLessThanOrEqual(Math.max(time, 1e-9));
    }
  });

  test('clocks that count for days: the first action is done however the beginning is rounded', () => {
    for (let i = 0; i < 200; i++) {
      const [origin, begin] = [(1e9 * i) / 7 + 0.123456, 4321.987654 + i / 3];
      const [first] = progressAt(35);
      const shift = (times: readonly number[]): number[] => times.map((time) => (time < 0 ? -1 : time - 500 + begin));
      const one = { ...first!, origin, begin, start: shift(first!.start), stop: shift(first!.stop) };
      const progress = [{ ...one, ready: shift(first!.ready) }];
      const status: LiveStatus = { kind: 'status', ended: null, time: 0, clock: origin + begin, places: [], progress };
      expect(unfinishedStep(schedule, status)!.standings[0]!.done, `origin ${origin}, begin ${begin}`).toBe(3);
    }
  });

  test('a failure: the moment at which the first rank noticed it; a failed rank still says for whom it waited', () => {
    const progress = progressAt(35).map((one) => (one.rank === 0 ? { ...one, failed: 560 } : one));
    const status: LiveStatus = {
      ...{ kind: 'status', ended: { failed: true, message: 'x' }, time: 0, clock: 99_999, progress },
      places: [place(0, '0RECV_B0', 1), { ...place(1, '1RECV_B0', null), state: 'failed' }, place(2, '2B0', null)],
    };
    const step = unfinishedStep(schedule, status)!;
    expect(step.lanes.makespan).toBe(60);
    expect(sayUnfinished(step, true)[2]).toBe(
      'Rank 1 had done 2 of 8 actions of step 7, and waited for rank 2 (1RECV_B0).',
    );
  });

  test('a rank outside of its step, entries that are not told, nonsense', () => {
    const ended = progressAt(1000, { end: 2000 });
    const status = (progress: readonly LiveProgress[]): LiveStatus => ({
      ...{ kind: 'status', ended: null, time: 0, clock: 0, places: [], progress },
    });
    expect(sayUnfinished(unfinishedStep(schedule, status(ended))!, true)[0]).toBe('Rank 0 had ended step 7.');
    const evaluation = unfinishedStep(schedule, status(progressAt(35, { training: false })))!;
    expect(sayUnfinished(evaluation, true)).toContain(
      'Rank 2 had done 1 of 4 actions of evaluation 7, and was in 2B0.',
    );
    const [whole] = progressAt(70);
    const cut = { ...whole!, from: 4, ...{ start: whole!.start.slice(4) } };
    const told = { ...cut, ready: whole!.ready.slice(4), stop: whole!.stop.slice(4) };
    const done = (one: LiveProgress): number => unfinishedStep(schedule, status([one]))!.standings[0]!.done;
    expect(done(told)).toBe(done(whole!));
    expect(unfinishedStep(schedule, status([{ ...whole!, rank: 99 }]))).toBeNull();
    expect(unfinishedStep(null, status(progressAt(10)))).toBeNull();
    const many = unfinishedStep(schedule, status([{ ...whole!, start: Array.from({ length: 500 }, () => 1e9) }]));
    expect(many).not.toBeNull();
  });

  test('many ranks: the first eight are named', () => {
    const large = lower(buildSchedule('GPipe', { ranks: 20, microbatches: 2 }));
    const one = { ...progressAt(0)[0]!, start: [], ready: [], stop: [] };
    const progress = Array.from({ length: 20 }, (_, rank) => ({ ...one, rank }));
    const step = unfinishedStep(large, { kind: 'status', places: [], ended: null, time: 0, clock: 500, progress })!;
    expect(sayUnfinished(step, true)).toHaveLength(9);
    expect(sayUnfinished(step, true)[8]).toBe('Where the other 12 ranks were is in the table below.');
  });
});
