/** @file Recordings made from simulated steps: what was put in comes out of every view. */
import { describe, expect, test } from 'vitest';
import type { Costs } from '../costs/costs.ts';
import type { TraceEvent } from '../draw/chrome-trace.ts';
import { renderSvg } from '../draw/svg/svg.ts';
import { renderTimeline } from '../draw/timeline.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { formatAction } from '../model/action.ts';
import { ScheduleError } from '../model/errors.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import type { Simulation } from '../simulate/simulation.ts';
import { meanCosts } from './mean-costs.ts';
import { type RankRecord, type Recording, recordedActions, recordedPlaces } from './recording.ts';
import { recordingReport, recordingSummary, typicalStep } from './report.ts';
import { recordedSimulation } from './simulation.ts';
import { recordingTrace } from './trace.ts';

/** Records a simulated step as the runtime would: a compute action begins when the rank is free and waits for its message. */
function recordOf(simulation: Simulation, rank: number, from: number): RankRecord {
  const places = recordedPlaces(simulation.schedule.order[rank]!);
  const column = (): number[] => new Array<number>(places.length).fill(-1);
  const record = { start: column(), ready: column(), stop: column(), bytes: column().fill(0), tensors: column() };
  let free = from;
  let held = 0;
  places.forEach((place, index) => {
    const { kind } = place.action;
    const at = simulation.offsets[rank]! + place.slot;
    const parts = simulation.partTimes.get(at);
    const own = places.filter((other) => other.isPart && other.slot === place.slot).indexOf(place);
    const computes = ['F', 'I', 'W', 'B'].includes(kind);
    const start = from + (own >= 0 ? parts![2 * own]! : simulation.start[at]!);
    const end = from + (own >= 0 ? parts![2 * own + 1]! : simulation.end[at]!);
    record.start[index] = free;
    if (kind === 'F') held++;
    if (kind === 'B' || kind === 'W') held--;
    record.tensors[index] = held;
    const { stage, microbatch } = place.action;
    const receive = `${stage}RECV_${kind === 'F' ? 'F' : 'B'}${microbatch}`;
    const waits = computes && kind !== 'W' && places.some(({ action }) => formatAction(action) === receive);
    if (waits) [record.ready[index], record.bytes[index]] = [start, 100];
    record.stop[index] = computes ? end : free;
    if (computes) free = end;
  });
  const wholes = places.filter((place) => place.parts > 0);
  for (const { index, parts } of wholes) {
    record.stop[index] = record.stop[index + parts]!;
  }
  return { begin: from, end: free, ...record, processBytes: 5e8, deviceBytes: null };
}

const uneven: Costs = { F: [1, 2, 3, 4], I: [1, 2, 1, 2], W: [2, 1, 1, 3], overlap: 'parts' };

function recordingOf(schedule: Schedule, costs: Costs, steps = 3): Recording {
  const simulation = simulate(schedule, costs);
  const ranks = Array.from({ length: schedule.ranks }, (_, rank) => rank);
  return {
    format: 'pipewright-recording',
    version: 1,
    schedule: JSON.parse(JSON.stringify(schedule)) as Recording['schedule'],
    tokensPerStep: 1024,
    ranks: ranks.map((rank) => ({
      rank,
      process: 'host:1',
      device: 'cpu',
      peakProcessBytes: 6e8,
      peakDeviceBytes: null,
    })),
    steps: Array.from({ length: steps }, (_, step) => ({
      step,
      training: true,
      ranks: ranks.map((rank) => recordOf(simulation, rank, step * (simulation.makespan + 10))),
    })),
  };
}

const cases = [
  ['1F1B', lower(buildSchedule('1F1B', { ranks: 4, microbatches: 8 }))],
  ['Interleaved1F1B', lower(buildSchedule('Interleaved1F1B', { ranks: 2, stagesPerRank: 2, microbatches: 4 }))],
  ['ZBVZeroBubble', lower(buildSchedule('ZBVZeroBubble', { ranks: 2, microbatches: 4 }))],
  ['DualPipeV', lower(buildSchedule('DualPipeV', { ranks: 2, microbatches: 6 }))],
] as const;

describe.each(cases)('%s', (_name, schedule) => {
  const simulation = simulate(schedule, uneven);
  const recording = recordingOf(schedule, uneven);

  test('a recorded step has the times, the bubble and the memory of the simulated one', () => {
    const recorded = recordedSimulation(recording);
    const compute = (of: Simulation): string[] =>
      of
        .events()
        .filter(({ action }) => ['F', 'I', 'W', 'B', 'OVERLAP_F_B'].includes(action.kind))
        .map(({ rank, action, start, end }) => `${rank} ${formatAction(action)} ${start} ${end}`);
    expect(compute(recorded)).toEqual(compute(simulation));
    expect(recorded.makespan).toBe(simulation.makespan);
    expect(recorded.bubble).toEqual(simulation.bubble);
    expect([...recorded.busy]).toEqual([...simulation.busy]);
    expect([...recorded.peakMemory]).toEqual([...simulation.peakMemory]);
  });

  test('ranks that come earlier, while the first one is busy with the step before, do not make the step longer', () => {
    const steps = recording.steps.map((step) => ({
      ...step,
      ranks: step.ranks.map((record, rank): RankRecord => {
        if (rank === 0) return record;
        // Up to the first message that they wait for, all began 5 earlier.
        const begin = record.begin - 5;
        return { ...record, begin, start: record.start.map((at) => (at === record.begin ? begin : at)) };
      }),
    }));
    const early = { ...recording, steps };
    expect(recordedSimulation(early).makespan).toBe(simulation.makespan);
    expect(recordedSimulation(early).bubble).toEqual(simulation.bubble);
    expect(renderTimeline(recordedSimulation(early))).toBe(renderTimeline(simulation));
    const waiting = (of: Recording): number[] => recordingSummary(of).ranks.map((rank) => rank.waiting);
    expect(waiting(early)).toEqual(waiting(recording));
    expect(recordingSummary(early).recorded).toEqual(recordingSummary(recording).recorded);
  });

  test('it draws as the simulated one does', () => {
    expect(renderTimeline(recordedSimulation(recording))).toBe(renderTimeline(simulation));
    expect(renderSvg(recordedSimulation(recording))).toContain('<svg');
  });

  test('the critical path of a recorded step is unbroken and as long as the step', () => {
    const path = recordedSimulation(recording).criticalPath;
    expect(path[0]!.start).toBe(0);
    expect(path.at(-1)!.end).toBe(simulation.makespan);
    for (let i = 1; i < path.length; i++) expect(path[i]!.start).toBeGreaterThanOrEqual(path[i - 1]!.end);
  });

  test('mean costs are those that went in', () => {
    const { F, I, W } = meanCosts(recording);
    const present = new Set(recordedActions(recording).map(({ action }) => `${action.kind}${action.stage}`));
    for (let stage = 0; stage < schedule.stages; stage++) {
      if (present.has(`F${stage}`)) expect((F as number[])[stage]).toBeCloseTo((uneven.F as number[])[stage]!, 9);
      if (present.has(`I${stage}`)) expect((I as number[])[stage]).toBeCloseTo((uneven.I as number[])[stage]!, 9);
      if (present.has(`W${stage}`)) expect((W as number[])[stage]).toBeCloseTo((uneven.W as number[])[stage]!, 9);
    }
    expect(recordingSummary(recording).planned.step).toBeCloseTo(simulation.makespan, 9);
  });

  test('waits are intervals of their own, and a rank does one thing at a time', () => {
    const actions = recordedActions(recording);
    const waits = actions.filter(({ action }) => action.kind.startsWith('RECV'));
    expect(waits.length).toBeGreaterThan(0);
    const idle = waits.reduce((sum, wait) => sum + wait.end - wait.start, 0);
    const first = (rank: number): number => actions.find((event) => event.rank === rank)!.start;
    const last = (rank: number): number => actions.filter((event) => event.rank === rank).at(-1)!.end;
    const spans = Array.from({ length: schedule.ranks }, (_, rank) => last(rank) - first(rank));
    expect(idle + simulation.busy.reduce((a, b) => a + b, 0)).toBeCloseTo(
      spans.reduce((a, b) => a + b, 0),
      9,
    );
    for (let i = 1; i < actions.length; i++)
      if (actions[i]!.rank === actions[i - 1]!.rank)
        expect(actions[i]!.start).toBeGreaterThanOrEqual(actions[i - 1]!.end);
  });

  test('the trace has one track per rank, without overlaps, and arrows from sends to receives', () => {
    const trace = recordingTrace(recording);
    expect(JSON.parse(JSON.stringify(trace))).toEqual(trace);
    expect(new Set(trace.traceEvents.map(({ pid }) => pid)).size).toBe(1);
    const of = (ph: string): TraceEvent[] => trace.traceEvents.filter((event) => event.ph === ph);
    const slices = of('X');
    expect(new Set(slices.map(({ tid }) => tid)).size).toBe(schedule.ranks);
    const inside = (event: TraceEvent, kind: RegExp): boolean =>
      slices.some(
        ({ name, tid, ts, dur }) => kind.test(name) && tid === event.tid && ts! <= event.ts! && event.ts! < ts! + dur!,
      );
    const last = new Map<number, number>();
    for (const { tid, ts, dur } of [...slices].sort((a, b) => a.ts! - b.ts!)) {
      expect(Math.round(1000 * ts!)).toBeGreaterThanOrEqual(Math.round(1000 * (last.get(tid) ?? 0)));
      last.set(tid, ts! + dur!);
    }
    const ends = new Map(of('f').map((event) => [event.id, event]));
    expect(of('s').length).toBe(slices.filter(({ name }) => name.includes('RECV')).length);
    expect(ends.size).toBe(of('s').length);
    for (const start of of('s')) {
      expect([inside(start, /SEND/), inside(ends.get(start.id)!, /RECV/)]).toEqual([true, true]);
    }
    expect(of('C').map(({ name }) => name)).toContain('rank 1: live tensors');
  });
});

// Without DualPipeV: a simulated pair releases the result of its first half at once, a rank sends it when both are done.
test.each(cases.slice(0, 3))('%s: arrows go forward in time', (_name, schedule) => {
  const { traceEvents } = recordingTrace(recordingOf(schedule, uneven));
  const ends = new Map(traceEvents.filter(({ ph }) => ph === 'f').map(({ id, ts }) => [id, ts]));
  const starts = traceEvents.filter(({ ph }) => ph === 's');
  const simulatedMessagesTakeNoTime = 0.01;
  for (const { id, ts } of starts) expect(ends.get(id)! + simulatedMessagesTakeNoTime).toBeGreaterThanOrEqual(ts!);
});

test('parts of an overlapped action that ran side by side get a track of their own', () => {
  const recording = recordingOf(cases[3][1], uneven, 1);
  const place = recordedPlaces(cases[3][1].order[0]!).find(({ parts }) => parts === 2)!;
  const beside = (record: RankRecord): RankRecord => {
    const [start, ready, stop] = [[...record.start], [...record.ready], [...record.stop]];
    const [first, second] = [place.index + 1, place.index + 2];
    ready[second] = -1;
    start[second] = Math.max(start[first]!, ready[first]!);
    stop[second] = stop[first]!;
    return { ...record, start, ready, stop };
  };
  const steps = recording.steps.map((step) => ({
    ...step,
    ranks: step.ranks.map((record, rank) => (rank === 0 ? beside(record) : record)),
  }));
  const { traceEvents } = recordingTrace({ ...recording, steps });
  const names = traceEvents.filter(({ name }) => name === 'thread_name').map(({ args }) => args?.['name']);
  expect(names).toEqual(['rank 0 (stages 0, 3)', 'rank 1 (stages 1, 2)', 'rank 0 (stages 0, 3), beside']);
  const second = traceEvents.filter(({ ph, tid }) => ph === 'X' && tid === 2);
  expect(second.length).toBe(1);
  const cell = recordedSimulation({ ...recording, steps });
  const at = cell.offsets[0]! + place.slot;
  const record = steps[0]!.ranks[0]!;
  const begin = Math.max(record.start[place.index + 1]!, record.ready[place.index + 1]!);
  expect(cell.end[at]! - cell.start[at]!).toBeCloseTo(record.stop[place.index + 1]! - begin, 9);
  const [alone, shared] = [recording, { ...recording, steps }].map((one) => meanCosts(one).F as number[]);
  expect(shared!.some((cost, stage) => cost < alone![stage]!)).toBe(true); // two at a time: half of the time each
});

test('of an evaluation there are only the forwards', () => {
  const schedule = lower(buildSchedule('1F1B', { ranks: 2, microbatches: 2 }));
  const recording = recordingOf(schedule, {}, 1);
  const steps = recording.steps.map((step) => ({
    ...step,
    training: false,
    ranks: step.ranks.map((record, rank) => {
      const forward = recordedPlaces(schedule.order[rank]!).map(({ action }) =>
        /^(F|SEND_F|RECV_F)$/.test(action.kind),
      );
      return { ...record, start: record.start.map((time, i) => (forward[i] === true ? time : -1)) };
    }),
  }));
  const evaluation = recordedSimulation({ ...recording, steps });
  expect(evaluation.schedule.toString()).not.toMatch(/B/);
  expect(evaluation.schedule.toString()).toContain('1F1');
});

test('the report says plan, recording, stages, ranks and rates', () => {
  const recording = recordingOf(cases[0][1], uneven);
  expect(typicalStep(recording).step).toBe(1);
  expect(recordingReport(recording, { width: 90 })).toMatchInlineSnapshot(`
    "1F1B: 4 ranks, 4 stages, 8 microbatches; recorded over 2 of 3 steps, times in ms

                planned  recorded
      one step    86.00     86.00
      bubble      46.5%     46.5%

      stage  rank  forwards  backwards  together
          0     0      8.00      24.00     32.00
          1     1     16.00      24.00     40.00
          2     2     24.00      16.00     40.00
          3     3     32.00      40.00     72.00  slowest: 1.57 times the mean

      rank   busy  waiting  sending  tensors  memory
         0  37.2%    62.8%     0.0%        4  600 MB  of its process
         1  46.5%    50.0%     0.0%        3  600 MB  of its process
         2  46.5%    46.5%     0.0%        2  600 MB  of its process
         3  83.7%     7.0%     0.0%        1  600 MB  of its process

    11,253 tokens/s, 11 steps/s, 48 messages of 4.8 kB together in a step

    Planned, with the recorded durations:
    rank 0 │FFF···········B0F····B1····B2F···B3F····B4····B5····B6─····B7│ busy  37.2%  peak 4
    rank 1 │·FF1F·······B0F3··B1─F···B2F···B3F6···B4F···B5····B6·····B7··│ busy  46.5%  peak 3
    rank 2 │··F0F1·····BF2···BF3─··B2F4···BF5···B4F6···BF7···B·····B7····│ busy  46.5%  peak 2
    rank 3 │····F0─B0──F1B1──F2─B2─F3─B3──F4─B4─F5─B5──F6B6──F7─B7─······│ busy  83.7%  peak 1
            0             20            40             60            80

    Recorded, step 1:
    rank 0 │FFF···········B0F····B1····B2F···B3F····B4····B5····B6─····B7│ busy  37.2%  peak 4
    rank 1 │·FF1F·······B0F3··B1─F···B2F···B3F6···B4F···B5····B6·····B7··│ busy  46.5%  peak 3
    rank 2 │··F0F1·····BF2···BF3─··B2F4···BF5···B4F6···BF7···B·····B7····│ busy  46.5%  peak 2
    rank 3 │····F0─B0──F1B1──F2─B2─F3─B3──F4─B4─F5─B5──F6B6──F7─B7─······│ busy  83.7%  peak 1
            0             20            40             60            80
    "
  `);
});

test('what is no recording is refused', () => {
  const recording = recordingOf(cases[0][1], uneven);
  expect(() => recordedSimulation({ ...recording, format: 'x' } as unknown as Recording)).toThrow(ScheduleError);
  expect(() => recordedSimulation(recording, 7)).toThrow('the recording has 3 steps, and none at 7');
});

test('a stage that is unsharded twice has two times, and the costs of its collectives are the means', () => {
  const schedule = Schedule.from({
    order: [['0UNSHARD', '0F0', '0RESHARD', '0UNSHARD', '0B0', '0REDUCE_GRAD', '0RESHARD']],
  });
  const start = [0, 2, 3, 3, 7, 9, 12];
  const stop = [2, 3, 3, 7, 9, 12, 12];
  const recording: Recording = {
    format: 'pipewright-recording',
    version: 1,
    schedule: JSON.parse(JSON.stringify(schedule)) as Recording['schedule'],
    tokensPerStep: null,
    ranks: [{ rank: 0, process: 'host:1', device: 'cpu', peakProcessBytes: 1, peakDeviceBytes: null }],
    steps: [
      {
        step: 1,
        training: true,
        ranks: [
          {
            begin: 0,
            end: 12,
            start,
            stop,
            ready: start.map(() => -1),
            bytes: start.map(() => 0),
            tensors: start.map(() => 0),
            processBytes: 1,
            deviceBytes: null,
          },
        ],
      },
    ],
  };
  const recorded = recordedSimulation(recording);
  expect(Array.from(recorded.start)).toEqual(start);
  expect(Array.from(recorded.end)).toEqual(stop);
  expect(meanCosts(recording)).toMatchObject({ F: [1], B: [2], unshard: [3], reshard: [0], reduceGrad: [3] });
});

describe('a recording that says what a processor worked', () => {
  const schedule = Schedule.from({
    order: [
      ['0UNSHARD', '0F0', '0SEND_F0', '0RECV_B0', '0B0', '0REDUCE_GRAD', '0RESHARD'],
      ['1RECV_F0', '1F0', '1B0', '1SEND_B0'],
    ],
  });
  /** Rank 1 sends in the middle of its backward; `late` is what others made rank 0 wait for in its collectives. */
  const step = (late: number): RankRecord[] => [
    {
      begin: 0,
      end: 30 + late,
      start: [0, 3, 7, 8, 9, 22, 29],
      ready: [-1, 4, -1, -1, 20, -1, -1],
      stop: [3 + late, 7, 8, 8.5, 22, 29 + late, 30],
      busy: [2, 2.5, 0.75, 0.25, 2, 6, 0.5],
      ...{ bytes: [], tensors: [0, 0, 0, 0, 0, 0, 0], processBytes: 1, deviceBytes: null },
    },
    {
      begin: 0,
      end: 30 + late,
      start: [0, 0.5, 12, 16],
      ready: [-1, 8, -1, -1],
      stop: [0.5, 12, 20, 17],
      busy: [0.125, 3, 5, 0.5],
      ...{ bytes: [], tensors: [0, 0, 0, 0], processBytes: 1, deviceBytes: null },
    },
  ];
  const recorded = (machine: object | undefined): Recording => ({
    format: 'pipewright-recording',
    version: 1,
    schedule: JSON.parse(JSON.stringify(schedule)) as Recording['schedule'],
    tokensPerStep: null,
    ranks: [0, 1].map((rank) => ({
      ...{ rank, process: 'host:1', device: 'cpu', peakProcessBytes: 1, peakDeviceBytes: null },
      ...(machine === undefined ? {} : { machine: { name: 'host', cores: 2, ranks: 4, ...machine } }),
    })),
    steps: [3, 0, 6].map((late, i) => ({ step: i + 1, training: true, ranks: step(late) })),
  });

  test('with a core for each rank: durations, and of collectives the work and the least wait', () => {
    const costs = { F: [3, 4], B: [2, 8], reshard: [1, 0], unshard: [1, 0], reduceGrad: [1, 0] };
    const overhead = { send: [1, 0], unshard: [2, 0], reduceGrad: [6, 0] }; // rank 1 sends within its backward
    for (const machine of [undefined, { cores: 4 }, { cores: 64 }]) {
      const found = meanCosts(recorded(machine));
      expect(found).toMatchObject({ ...costs, overhead });
      expect(found.cores).toBeUndefined();
    }
  });

  test('with too few cores: the work of all actions, what receives took included, and the cores of this pipeline', () => {
    const found = meanCosts(recorded({}));
    // Four ranks on two cores: F0 of rank 0 worked 2.5 of 3, which is no more than sharing a core takes; posting a receive is work.
    expect(found).toMatchObject({
      F: [2.5, 3.125],
      B: [2.25, 5],
      unshard: [0, 0],
      reshard: [0.5, 0],
      reduceGrad: [0, 0],
      overhead: { send: [0.75, 0.5], unshard: [2, 0], reduceGrad: [6, 0] },
      cores: { count: 1 },
    });
  });

  test('with too few cores: waiting beyond what sharing them takes counts', () => {
    const { steps, ...rest } = recorded({});
    const asleep = (record: RankRecord): RankRecord => ({
      ...record,
      busy: record.busy!.map((busy, index) => (index === 1 ? 0.5 : busy)),
    });
    const found = meanCosts({ ...rest, steps: steps.map((each) => ({ ...each, ranks: each.ranks.map(asleep) })) });
    // F0 of rank 0 took 3, that of rank 1 took 4; sharing a core makes 1 of the half that was work.
    expect(found.F).toEqual([0.5 + 2, 0.5 + 3 + 0.125]);
  });

  test('machines of their own are told by how many ranks of the pipeline each has; such that differ are left out', () => {
    const both = recorded({ cores: 1, ranks: 2 });
    const on = (...names: string[]): Recording => ({
      ...both,
      ranks: both.ranks.map((rank, i) => ({ ...rank, machine: { ...rank.machine!, name: names[i]! } })),
    });
    expect(meanCosts(on('a', 'a')).cores).toEqual({ count: 1 });
    expect(meanCosts(on('a', 'b')).cores).toEqual({ count: 0.5, ranks: 1 });
    const odd = on('a', 'b');
    const differ = odd.ranks.map((rank, i) => ({ ...rank, machine: { ...rank.machine!, cores: 1 + i } }));
    expect(meanCosts({ ...odd, ranks: differ }).cores).toBeUndefined();
  });
});
