import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { type ChromeTrace, dumpChromeTrace, type TraceEvent, toChromeTrace } from './chrome-trace.ts';

const shape = { ranks: 4, microbatches: 8 };
const inputs: Record<string, ChromeTrace> = {
  'compute order': toChromeTrace(buildSchedule('1F1B', shape)),
  'compute order with slow messages': toChromeTrace(
    simulate(buildSchedule('ZBV', shape), { F: 1.1, I: 0.9, W: 0.7, comm: 0.35 }),
  ),
  'lowered order': toChromeTrace(lower(buildSchedule('Interleaved1F1B', { ...shape, stagesPerRank: 2 }))),
  'lowered order with sizes': toChromeTrace(
    simulate(lower(buildSchedule('DualPipeV', { ranks: 4, microbatches: 10 })), {
      comm: { bytes: 10, bandwidth: 25, latency: 0.1 },
      unshard: 0.5,
      reduceGrad: 0.25,
    }),
  ),
  'blocking messages': toChromeTrace(
    simulate(lower(buildSchedule('GPipe', shape)), { comm: 0.2, communication: 'blocking' }),
  ),
};

const events = (trace: ChromeTrace, ph: TraceEvent['ph']): TraceEvent[] => trace.traceEvents.filter((e) => e.ph === ph);
const track = (event: TraceEvent): string => `${event.pid}/${event.tid}`;

describe.each(Object.entries(inputs))('trace of a %s keeps the rules of the format', (_, trace) => {
  const slices = new Map<string, TraceEvent[]>();
  for (const slice of events(trace, 'X')) slices.set(track(slice), [...(slices.get(track(slice)) ?? []), slice]);

  test('it is JSON, and every event has its required fields', () => {
    expect(JSON.parse(JSON.stringify(trace))).toEqual(trace);
    for (const event of trace.traceEvents) {
      expect(typeof event.name).toBe('string');
      expect([event.pid, event.tid].every(Number.isInteger)).toBe(true);
      if (event.ph !== 'M') expect(event.ts).toBeGreaterThanOrEqual(0);
      if (event.ph === 'X') expect(event.dur).toBeGreaterThan(0);
      if (event.ph === 'i') expect(event.s).toBe('t');
      if (event.ph === 'C') expect(Object.values(event.args!).every(Number.isFinite)).toBe(true);
    }
  });

  test('slices of a thread follow one another', () => {
    for (const list of slices.values()) {
      const sorted = [...list].sort((a, b) => a.ts! - b.ts!);
      for (let i = 1; i < sorted.length; i++)
        expect(sorted[i]!.ts! + 1e-6).toBeGreaterThanOrEqual(sorted[i - 1]!.ts! + sorted[i - 1]!.dur!);
    }
  });

  test('arrows come in pairs, go forward in time, and both ends lie inside a slice', () => {
    const starts = events(trace, 's');
    const ends = new Map(events(trace, 'f').map((e) => [e.id, e]));
    expect(starts.length).toBeGreaterThan(0);
    expect(new Set(starts.map((e) => e.id)).size).toBe(starts.length);
    expect(ends.size).toBe(starts.length);
    const inside = (event: TraceEvent): boolean =>
      slices.get(track(event))!.some((s) => event.ts! >= s.ts! && event.ts! < s.ts! + s.dur!);
    for (const start of starts) {
      const end = ends.get(start.id)!;
      expect([end.cat, end.name, end.bp]).toEqual([start.cat, start.name, 'e']);
      expect(end.ts).toBeGreaterThanOrEqual(start.ts!);
      expect(end.pid).not.toBe(start.pid);
      expect(inside(start) && inside(end)).toBe(true);
    }
  });

  test('every thread with events has a name, every rank a counter', () => {
    const named = new Set(
      events(trace, 'M')
        .filter((e) => e.name === 'thread_name')
        .map(track),
    );
    for (const event of trace.traceEvents)
      if (event.ph === 'X' || event.ph === 'i') expect(named).toContain(track(event));
    expect(new Set(events(trace, 'C').map((e) => e.pid)).size).toBe(4);
  });
});

describe('toChromeTrace', () => {
  test('files compute as computation, everything else as communication (gap 35)', () => {
    const categories = new Map<string, Set<string | undefined>>();
    for (const name of ['lowered order', 'lowered order with sizes', 'compute order with slow messages']) {
      for (const event of inputs[name]!.traceEvents) {
        if (event.ph !== 'X' && event.ph !== 'i') continue;
        const kind = event.name.replace(/^(\d+|\(.*\))/, '').replace(/\d+$/, '');
        categories.set(kind, (categories.get(kind) ?? new Set()).add(event.cat));
      }
    }
    const list = [...categories].map(([kind, cats]) => `${kind}: ${[...cats].join()}`).sort();
    expect(list).toMatchInlineSnapshot(`
      [
        "B: computation",
        "F: computation",
        "I: computation",
        "OVERLAP_F_B: computation",
        "RECV_B: communication",
        "RECV_F: communication",
        "REDUCE_GRAD: communication",
        "RESHARD: communication",
        "SEND_B: communication",
        "SEND_F: communication",
        "UNSHARD: communication",
        "W: computation",
      ]
    `);
  });

  test('an example in full', () => {
    const schedule = Schedule.from({
      order: [
        ['0F0', '0SEND_F0'],
        ['1RECV_F0', '1F0'],
      ],
    });
    const lines = toChromeTrace(simulate(schedule, { comm: 0.5 })).traceEvents.map((event) => JSON.stringify(event));
    expect(lines.join('\n')).toMatchInlineSnapshot(`
      "{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0"}}
      {"name":"process_sort_index","ph":"M","pid":0,"tid":0,"args":{"sort_index":0}}
      {"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"compute"}}
      {"name":"thread_sort_index","ph":"M","pid":0,"tid":0,"args":{"sort_index":0}}
      {"name":"thread_name","ph":"M","pid":0,"tid":100,"args":{"name":"send"}}
      {"name":"thread_sort_index","ph":"M","pid":0,"tid":100,"args":{"sort_index":100}}
      {"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"rank 1"}}
      {"name":"process_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":1}}
      {"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"compute"}}
      {"name":"thread_sort_index","ph":"M","pid":1,"tid":0,"args":{"sort_index":0}}
      {"name":"thread_name","ph":"M","pid":1,"tid":200,"args":{"name":"receive"}}
      {"name":"thread_sort_index","ph":"M","pid":1,"tid":200,"args":{"sort_index":200}}
      {"name":"0F0","cat":"computation","ph":"X","pid":0,"tid":0,"ts":0,"dur":1000,"args":{"kind":"Forward","stage":0,"microbatch":0,"slot":0}}
      {"name":"0SEND_F0","cat":"communication","ph":"X","pid":0,"tid":100,"ts":1000,"dur":500,"args":{"kind":"Send forward","stage":0,"microbatch":0,"slot":1}}
      {"name":"1RECV_F0","cat":"communication","ph":"X","pid":1,"tid":200,"ts":0,"dur":1500,"args":{"kind":"Receive forward","stage":1,"microbatch":0,"slot":0}}
      {"name":"1F0","cat":"computation","ph":"X","pid":1,"tid":0,"ts":1500,"dur":1000,"args":{"kind":"Forward","stage":1,"microbatch":0,"slot":1}}
      {"name":"activation","cat":"communication","ph":"s","id":1,"pid":0,"tid":100,"ts":1000}
      {"name":"activation","cat":"communication","ph":"f","bp":"e","id":1,"pid":1,"tid":200,"ts":1000}
      {"name":"memory","ph":"C","pid":0,"tid":0,"ts":0,"args":{"held":1}}
      {"name":"memory","ph":"C","pid":0,"tid":0,"ts":1000,"args":{"held":0}}
      {"name":"memory","ph":"C","pid":1,"tid":0,"ts":0,"args":{"held":0}}
      {"name":"memory","ph":"C","pid":1,"tid":0,"ts":1500,"args":{"held":1}}
      {"name":"memory","ph":"C","pid":1,"tid":0,"ts":2500,"args":{"held":0}}"
    `);
  });

  test('leaves out what is not wanted, and scales', () => {
    const trace = toChromeTrace(buildSchedule('1F1B', shape), { flows: false, counters: false, unitUs: 1 });
    expect(new Set(trace.traceEvents.map((e) => e.ph))).toEqual(new Set(['M', 'X']));
    expect(trace.traceEvents.at(-1)).toMatchObject({ name: '3B7', ts: 25, dur: 2 });
    expect(() => toChromeTrace(buildSchedule('1F1B', shape), { unitUs: 0 })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: toChromeTrace: unitUs must be a number of microseconds above 0, got 0]`,
    );
    expect(() =>
      toChromeTrace(buildSchedule('1F1B', shape), { flow: false } as object),
    ).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: toChromeTrace: unknown option 'flow'; did you mean 'flows'?]`,
    );
  });

  test('writes PyTorch’s file', () => {
    const schedule = Schedule.from({
      order: [
        ['0F0', null, '0I0', '0W0'],
        [null, '(1F0;1B0)OVERLAP_F_B'],
      ],
    });
    expect(dumpChromeTrace(schedule)).toBe(
      '{"traceEvents": [' +
        [
          '{"name": "0F0", "cat": "computation", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 1}',
          '{"name": "0I0", "cat": "communication", "ph": "X", "pid": 0, "tid": 0, "ts": 2, "dur": 1}',
          '{"name": "0W0", "cat": "computation", "ph": "X", "pid": 0, "tid": 0, "ts": 3, "dur": 1}',
          '{"name": "(1F0;1B0)OVERLAP_F_B", "cat": "communication", "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1}',
        ].join(', ') +
        ']}',
    );
    expect(dumpChromeTrace(schedule.order)).toBe(dumpChromeTrace(schedule));
    expect(toChromeTrace(schedule, { compat: 'torch' })).toEqual(JSON.parse(dumpChromeTrace(schedule)));
  });
});
