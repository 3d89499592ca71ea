/** @file What a running job says: slow ranks and waits in words, differences from the plan action by action. */
import {
  type LivePlace,
  LiveRunReader,
  type LiveStatus,
  pictureOf,
  type Recording,
  type Simulation,
  simulate,
} from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { plan } from '../../../testing/plan.ts';
import { differencesOf, sayDifferences, sayOne } from './differences.ts';
import { lanesOf } from './lanes.ts';
import {
  isEvaluating,
  type LiveState,
  momentOf,
  picturedSlot,
  placesOf,
  sayCalm,
  sayConnection,
  sayCount,
  sayLastStep,
  sayLive,
} from './live.ts';
import { openPlan, planCostsInMs } from './plan.ts';
import { openRecording } from './recorded.ts';

const { schedule } = openPlan('plan.json', JSON.stringify(plan))!;
const costs = planCostsInMs(plan);

/** A recording of two steps in which actions took the times of a simulation. */
function recordingOf(simulation: Simulation): Recording {
  const reader = new LiveRunReader(10, 2);
  schedule.order.forEach((_, rank) => {
    const head = { device: 'cpu', process: `host:${rank}`, origin: 0, tokensPerStep: 8 };
    reader.add(rank, { kind: 'run', version: 1, rank, ...head, schedule: rank === 0 ? schedule.toJSON() : null });
  });
  for (const step of [0, 1])
    schedule.order.forEach((row, rank) => {
      const from = step * 1000;
      const times = row.flatMap((_, slot) => simulation.at(rank, slot) ?? []);
      const start = times.map((one) => from + one.start);
      reader.add(rank, {
        ...{ kind: 'step', step, training: true, begin: from, end: from + simulation.makespan, loss: 1 },
        ...{ processBytes: 1, deviceBytes: null, heldBytes: null },
        actions: {
          ...{ start, ready: start.map(() => -1), stop: times.map((one) => from + one.end) },
          ...{ bytes: start.map(() => 0), tensors: start.map(() => 0) },
        },
      });
    });
  return reader.recording()!;
}

const state = (recording: Recording, fields: Partial<LiveState> = {}): LiveState => ({
  ...{
    schedule,
    steps: [],
    evaluations: [],
    evaluatedLast: false,
    recording,
    evaluation: null,
    status: null,
    unfinished: null,
    tokensPerStep: null,
    now: 10_000,
  },
  ...fields,
});

describe('a run with a plan', () => {
  test('as planned: nothing is marked', () => {
    const recording = recordingOf(simulate(schedule, costs));
    const view = openRecording('run', recording, plan).view(1);
    const differences = differencesOf(view)!;
    expect(differences).toMatchObject({ longer: [], late: [] });
    expect(sayDifferences(differences, view, 'planned')).toBe('Every action took about as long as planned.');
    expect(sayLive(state(recording), differences)).toEqual([]);
  });

  test('a rank that computes longer is named first, its actions are marked, and so are those that wait for them', () => {
    const slow = (values: unknown): number[] =>
      (values as number[]).map((time, stage) => (stage === 2 ? time * 1.5 : time));
    const recording = recordingOf(simulate(schedule, { ...costs, F: slow(costs.F), B: slow(costs.B) }));
    const view = openRecording('run', recording, plan).view(1);
    const differences = differencesOf(view)!;
    expect(sayLive(state(recording), differences)).toEqual(['Rank 2 computes 50.0% longer than planned.']);
    expect(new Set(differences.longer.map(({ rank }) => rank))).toEqual(new Set([2]));
    expect(differences.longer).toHaveLength(16);
    expect(new Set(differences.late.map(({ rank }) => rank))).toContain(3);
    expect(sayDifferences(differences, view, 'planned')).toMatch(
      /^16 actions took over 10% longer than planned, most 2[FB]\d on rank 2 \(50\.0%\); \d+ actions had to wait longer\.$/,
    );
    expect(sayOne(view, differences.longer[0]!)).toMatch(
      /^2F0 on rank 2: planned 22\.00 to 33\.00 ms, recorded 22\.00 to 38\.50 ms: starts on time, takes 50\.0% longer\.$/,
    );
    // Without a plan, ranks are held against each other.
    expect(sayLive(state(recording), null)[0]).toMatch(/^Rank \d computes [\d.]+% longer than the median rank\.$/);
  });

  test('clauses without actions are left out', () => {
    const view = openRecording('run', recordingOf(simulate(schedule, costs)), plan).view(1);
    const { longer, late } = differencesOf(
      openRecording('run', recordingOf(simulate(schedule, { ...costs, comm: 30 })), plan).view(1),
    )!;
    expect(longer).toEqual([]);
    expect(sayDifferences({ longer, late, ranks: [] }, view, 'planned')).toBe(
      `${late.length} actions had to wait longer than planned.`,
    );
  });

  test('before the first step there is nothing to compare; then the last step stands beside the recent ones', () => {
    const recording = recordingOf(simulate(schedule, costs));
    expect(sayCalm({ ...state(recording), recording: null }, false)).toBe('Waiting for the first step.');
    expect(sayCalm(state(recording), false)).toBe('No rank is notably slower than the others.');
    expect(sayCalm(state(recording), true)).toBe('Every rank computes as planned.');
    const [first, last] = recording.steps;
    const slower = last!.ranks.map((rank) => ({ ...rank, begin: 0, end: 300 }));
    const even = first!.ranks.map((rank) => ({ ...rank, begin: 0, end: 100 }));
    const two = {
      ...recording,
      steps: [
        { ...first!, ranks: even },
        { ...last!, ranks: slower },
      ],
    };
    expect(sayLastStep(two, null)).toBe('The last step took 300 ms; recent average 200 ms (50.0% longer).');
    expect(sayLastStep(two, { name: 'plan.json', ms: 400 })).toBe(
      'The last step took 300 ms; planned in plan.json: 400 ms (25.0% shorter).',
    );
  });

  test('a wait says for whom and since when; a failure comes first', () => {
    const recording = recordingOf(simulate(schedule, costs));
    const place: LivePlace = {
      ...{ rank: 1, state: 'waiting', step: 3, slot: 4, action: '1RECV_F2', waitingFor: 0, since: 5000 },
    };
    const status = { kind: 'status', places: [place], ended: null, time: 10_000 } as const;
    expect(sayLive(state(recording, { status }), null)[0]).toBe('Rank 1 has waited 5 s for rank 0 (1RECV_F2).');
    const ended = { failed: true, message: 'rank 0 was killed' };
    expect(sayLive(state(recording, { status: { ...status, ended } }), null)).toEqual([
      'The job failed: rank 0 was killed',
    ]);
  });

  test('of a failed job, the table says where a rank was in the step that did not end', () => {
    const place = (rank: number, how: LivePlace['state']): LivePlace => ({
      ...{ rank, state: how, step: 3, slot: null, action: 'step ended', waitingFor: null, since: 0 },
    });
    const standing = { step: 3, evaluates: false, done: 1, count: 4, ended: false };
    const unfinished = {
      lanes: lanesOf(pictureOf(simulate(schedule, costs))),
      standings: [
        { ...standing, rank: 0, action: '0RECV_B2', cell: { rank: 0, slot: 5 }, waitingFor: 1 },
        { ...standing, rank: 1, action: '1F2', cell: { rank: 1, slot: 4 }, waitingFor: null },
        { ...standing, rank: 2, action: null, cell: null, waitingFor: null, ended: true },
      ],
    };
    const places = [place(0, 'working'), place(1, 'failed'), place(2, 'working')];
    const status = { kind: 'status', places, ended: { failed: true, message: '' }, time: 0 } as const;
    expect(placesOf({ status, unfinished })).toMatchObject([
      { rank: 0, state: 'waiting', slot: 5, action: '0RECV_B2', waitingFor: 1 },
      { rank: 1, state: 'failed', slot: 4, action: '1F2', waitingFor: null },
      { rank: 2, state: 'working', slot: null, action: 'step ended' },
    ]);
    expect(placesOf({ status: { ...status, ended: null }, unfinished })).toBe(places);
  });
});

describe('a run that evaluates', () => {
  const summaries = (count: number): LiveState['steps'] =>
    Array.from({ length: count }, (_, step) => ({
      ...{ step, begin: 10 * step, end: 10 * step + 9, loss: null, waiting: null, memoryBytes: 1 },
    }));
  const recording = recordingOf(simulate(schedule, costs));
  const ended = { kind: 'status', places: [], ended: { failed: false, message: '' }, time: 0 } as const;

  test('says how many steps and evaluations there were, and that it evaluates while it does', () => {
    const trained = { steps: summaries(60) };
    const both = { ...trained, evaluations: summaries(295) };
    const last = { ...both, evaluatedLast: true };
    expect(sayCount(state(recording))).toBe('no step yet');
    expect(sayCount(state(recording, trained))).toBe('step 59');
    expect(sayCount(state(recording, both))).toBe('step 59, 295 evaluations');
    expect(sayCount(state(recording, last))).toBe('step 59, 295 evaluations, evaluates');
    expect(sayCount(state(recording, { ...last, status: ended }))).toBe('step 59, 295 evaluations');
    expect(sayCount(state(recording, { evaluations: summaries(1), evaluatedLast: true }))).toBe(
      '1 evaluation, evaluates',
    );
    expect(sayCalm({ ...state(recording, { evaluations: summaries(1) }), recording: null }, false)).not.toMatch(
      /Waiting/,
    );
  });

  test('a step that is under way decides what it does', () => {
    const lanes = lanesOf(pictureOf(simulate(schedule, costs)));
    const standing = { rank: 0, step: 3, done: 1, count: 4, action: null, cell: null, waitingFor: null, ended: false };
    const unfinished = (evaluates: boolean): LiveState['unfinished'] => ({
      lanes,
      standings: [{ ...standing, evaluates }],
    });
    expect(isEvaluating(state(recording, { evaluatedLast: true, unfinished: unfinished(false) }))).toBe(false);
    expect(isEvaluating(state(recording, { evaluatedLast: false, unfinished: unfinished(true) }))).toBe(true);
    const failed = { ...ended, ended: { failed: true, message: '' } };
    expect(isEvaluating(state(recording, { status: failed, unfinished: unfinished(true) }))).toBe(true);
    expect(isEvaluating(state(recording, { status: failed, evaluatedLast: true }))).toBe(false);
  });

  test('the picture of an evaluation has the forwards only: a place of the schedule is found in it by its action', () => {
    const evaluated = { ...recording, steps: recording.steps.map((step) => ({ ...step, training: false })) };
    const { picture } = openRecording('run', evaluated).view(1).recorded;
    const last = schedule.order[0]!.findLastIndex((action) => action?.kind === 'F');
    const slot = picturedSlot(picture.schedule, schedule, 0, last)!;
    expect(slot).toBeLessThan(last);
    expect(picture.schedule.at(0, slot)).toEqual(schedule.at(0, last));
    const backward = schedule.order[0]!.findIndex((action) => action?.kind === 'B');
    expect(picturedSlot(picture.schedule, schedule, 0, backward)).toBeNull();
    expect(picturedSlot(schedule, schedule, 0, backward)).toBe(backward);
    expect(sayLastStep(evaluated, null)).toMatch(/^The last evaluation took/);
  });
});

describe('whether the job is still heard of', () => {
  const time = Date.UTC(2026, 0, 2, 3, 4);
  const running = { kind: 'status', places: [], ended: null, time } as const;
  const over = (failed: boolean): LiveStatus => ({ ...running, ended: { failed, message: '' } });

  test('a job that is over is not connected any more, whatever became of its server', () => {
    for (const connected of [true, false, null]) {
      expect(sayConnection(over(false), connected, 60_000)).toBe('ended on 2026-01-02 03:04 UTC');
      expect(sayConnection(over(true), connected, 0)).toBe('failed on 2026-01-02 03:04 UTC');
    }
    expect(momentOf(over(true), 60_000)).toBe(time);
  });

  test('one that runs is connected as long as its launcher is heard of', () => {
    expect(sayConnection(null, true, 60_000)).toBe('connected'); // nothing has come yet
    expect(sayConnection(running, true, 2500)).toBe('connected');
    expect(sayConnection(running, false, 2500)).toBe('not connected');
    expect(sayConnection(running, true, 60_000)).toBe(
      'connected, but nothing was heard of the job since 2026-01-02 03:04 UTC: it was stopped or killed',
    );
    expect(sayConnection(running, null, 0)).toBe('as the job was on 2026-01-02 03:04 UTC');
  });

  test('waits grow between two of its lines, and not beyond them', () => {
    expect(momentOf(running, 1500)).toBe(time + 1500);
    expect(momentOf(running, 3_600_000)).toBeLessThan(time + 5000);
    expect(momentOf(running, null)).toBe(time);
  });
});
