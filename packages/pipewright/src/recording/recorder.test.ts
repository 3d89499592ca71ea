/** @file Recorded runs of real pipelines: every action once, nothing overlaps, every message has two ends. */
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import {
  type ChromeTrace,
  formatAction,
  type RecordedAction,
  type Recording,
  recordedActions,
  recordedSimulation,
  recordingSummary,
  recordingTrace,
  Schedule,
} from '@pipewright/schedule';
import { nn, ones, scope, zeros } from '@pipewright/torch';
import { beforeAll, describe, expect, test } from 'vitest';
import { PipelineRuntime } from '../runtime/runtime.ts';
import { PipelineStage } from '../stage/index.ts';
import { clockOffset, settleClocks } from './clock.ts';
import { Recorder } from './recorder.ts';

interface Case {
  readonly mode: 'threads' | 'processes';
  readonly schedule: string;
  readonly model: string;
  readonly ranks: number;
  readonly microbatches: number;
  readonly keep?: number;
  /** Gradients leave after the whole backward. */
  readonly late?: boolean;
}

interface RankResult {
  readonly recording: Recording | null;
  readonly report: string | null;
  readonly timeline: RecordedAction[];
  readonly lastStep: { step: number; seconds: number; waiting: number };
  readonly stepCount: number;
}

const script = fileURLToPath(new URL('../../testing/ranks/recorded.mjs', import.meta.url));

async function run(one: Case, env: Record<string, string> = {}): Promise<{ ranks: RankResult[]; stderr: string }> {
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [script, JSON.stringify(one)], {
    env: { ...process.env, NODE_OPTIONS: '', ...env },
    maxBuffer: 1e8,
  });
  const line = stdout.split('\n').find((text) => text.startsWith('result '))!;
  return { ranks: JSON.parse(line.slice(7)) as RankResult[], stderr };
}

/** Cross-rank messages of a schedule as pairs of actions. */
function messagesOf({ stageEdges, stageToRank, microbatches }: Schedule): [send: string, receive: string][] {
  const crossing = stageEdges.filter(([from, to]) => stageToRank[from] !== stageToRank[to]);
  return crossing.flatMap(([from, to]) =>
    Array.from({ length: microbatches }, (_, m): [string, string][] => [
      [`${from}SEND_F${m}`, `${to}RECV_F${m}`],
      [`${to}SEND_B${m}`, `${from}RECV_B${m}`],
    ]).flat(),
  );
}

const isCompute = ({ action }: RecordedAction): boolean => ['F', 'B', 'I', 'W'].includes(action.kind);
const byText = (actions: readonly RecordedAction[]): Map<string, RecordedAction> =>
  new Map(actions.map((event) => [formatAction(event.action), event]));

const cases: Case[] = [
  { mode: 'threads', schedule: '1F1B', model: 'mlp', ranks: 4, microbatches: 6 },
  { mode: 'threads', schedule: 'DualPipeV', model: 'mlp', ranks: 2, microbatches: 6 },
  { mode: 'threads', schedule: 'Interleaved1F1B', model: 'skip', ranks: 2, microbatches: 4 },
  { mode: 'threads', schedule: 'ZBVZeroBubble', model: 'tree', ranks: 2, microbatches: 4, keep: 3 },
  { mode: 'threads', schedule: 'GPipe', model: 'mlp', ranks: 1, microbatches: 4 },
  { mode: 'processes', schedule: '1F1B', model: 'mlp', ranks: 2, microbatches: 4 },
  { mode: 'threads', schedule: '1F1B', model: 'mlp', ranks: 2, microbatches: 4, late: true },
];

describe.each(cases)('$schedule of $model on $ranks $mode', (one) => {
  let results: RankResult[] = [];
  const recorded = (): Recording => results[0]!.recording!;
  beforeAll(async () => {
    results = (await run(one)).ranks;
  });
  const kept = one.keep === 3 ? [2, 3, 4] : [0, 1, 2, 3, 4];

  test('rank 0 has the last steps of all ranks, the others nothing', () => {
    const recording = recorded();
    expect(recording.ranks.map(({ rank }) => rank)).toEqual(Array.from({ length: one.ranks }, (_, rank) => rank));
    expect(recording.steps.map(({ step }) => step)).toEqual(kept);
    expect(recording.steps.filter(({ training }) => !training).map(({ step }) => step)).toEqual([2]);
    for (const other of results.slice(1)) expect([other.recording, other.report]).toEqual([null, null]);
    expect(results.map(({ stepCount }) => stepCount)).toEqual(recording.ranks.map(() => 5));
  });

  test('every compute action of the schedule is there once, in a step only those, in an evaluation only the forwards', () => {
    const recording = recorded();
    const schedule = Schedule.fromJSON(recording.schedule);
    const wanted: string[] = [];
    schedule.forEachLeaf(({ word }) => wanted.push(schedule.format(word)));
    recording.steps.forEach(({ training }, at) => {
      const found = recordedActions(recording, at)
        .filter(isCompute)
        .map(({ action }) => formatAction(action));
      const compute = wanted.filter((text) => (training ? /^\d+[FBIW]\d/ : /^\d+F\d/).test(text));
      expect(found.sort()).toEqual(compute.sort());
    });
  });

  test('the intervals of a rank lie inside its step and do not overlap, but for gradients sent within their backward', () => {
    const recording = recorded();
    let early = 0;
    recording.steps.forEach(({ ranks }, at) => {
      const actions = recordedActions(recording, at);
      ranks.forEach(({ begin, end }, rank) => {
        let free = begin;
        const own = actions.filter((other) => other.rank === rank);
        const backwards = byText(own.filter(({ action }) => action.kind === 'B'));
        for (const event of own) {
          const backward = backwards.get(formatAction(event.action).replace('SEND_B', 'B'));
          if (event.action.kind === 'SEND_B' && backward !== undefined && event.start < backward.end) {
            expect(event.start).toBeGreaterThanOrEqual(backward.start);
            expect(event.end).toBeLessThanOrEqual(backward.end);
            early++;
            continue;
          }
          expect(event.start).toBeGreaterThanOrEqual(free);
          expect(event.end).toBeGreaterThanOrEqual(event.start);
          free = event.end;
        }
        expect(end).toBeGreaterThanOrEqual(free);
      });
    });
    if (one.schedule !== '1F1B') return;
    const steps = recording.steps.filter(({ training }) => training).length;
    expect(early).toBe(one.late === true ? 0 : steps * (one.ranks - 1) * one.microbatches);
  });

  test('every message has a send and a later receive of as many bytes', () => {
    const recording = recorded();
    const schedule = Schedule.fromJSON(recording.schedule);
    recording.steps.forEach(({ training }, at) => {
      const events = byText(recordedActions(recording, at));
      const messages = messagesOf(schedule).filter(([send]) => training || send.includes('SEND_F'));
      for (const [send, receive] of messages) {
        const [from, to] = [events.get(send)!, events.get(receive)!];
        expect(to.end).toBeGreaterThanOrEqual(from.start);
        expect(from.bytes).toBeGreaterThan(0);
        if (schedule.edges === null) expect(to.bytes).toBe(from.bytes);
      }
      const total = (kind: string): number =>
        [...events.values()].filter(({ action }) => action.kind.startsWith(kind)).reduce((sum, e) => sum + e.bytes, 0);
      expect(total('RECV')).toBe(total('SEND'));
    });
  });

  test('memory is there', () => {
    const recording = recorded();
    for (const { peakProcessBytes, peakDeviceBytes, device } of recording.ranks) {
      expect(peakProcessBytes).toBeGreaterThan(1e7);
      expect([peakDeviceBytes, device]).toEqual([null, 'cpu']);
    }
    for (const { processBytes } of recording.steps.flatMap(({ ranks }) => ranks))
      expect(processBytes).toBeGreaterThan(1e7);
    for (const { tensors } of recordedActions(recording)) expect(tensors).toBeGreaterThan(0);
  });

  test('a rank sees its own part without the others', () => {
    const recording = recorded();
    for (const [rank, { timeline, lastStep }] of results.entries()) {
      const shape = (events: readonly RecordedAction[]): string[] =>
        events.map(({ action, slot, bytes }) => `${formatAction(action)} ${slot} ${bytes}`);
      expect(shape(timeline)).toEqual(shape(recordedActions(recording).filter((event) => event.rank === rank)));
      expect(lastStep.step).toBe(4);
      expect(lastStep.seconds).toBeGreaterThan(0);
      expect(lastStep.waiting).toBeGreaterThanOrEqual(0);
      expect(lastStep.waiting).toBeLessThan(1);
    }
  });

  test('the trace is valid: one track per rank, an arrow for every message', () => {
    const recording = recorded();
    const trace = recordingTrace(recording);
    const tracks = new Set(trace.traceEvents.filter(({ ph }) => ph === 'X').map(({ pid, tid }) => `${pid} ${tid}`));
    expect(tracks.size).toBe(one.ranks);
    const messages = messagesOf(Schedule.fromJSON(recording.schedule));
    const forwards = messages.filter(([send]) => send.includes('SEND_F')).length;
    const steps = kept.length - 1;
    const arrows = trace.traceEvents.filter(({ ph }) => ph === 's');
    expect(arrows.length).toBe(steps * messages.length + forwards);
    const ends = new Map(trace.traceEvents.filter(({ ph }) => ph === 'f').map(({ id, ts }) => [id, ts!]));
    for (const { id, ts } of arrows) expect(ends.get(id)).toBeGreaterThanOrEqual(ts!);
  });

  test('the shares of a rank are no more than the whole', () => {
    const whole = one.schedule === 'DualPipeV' ? 2 : 1; // parts may run side by side
    for (const { busy, waiting, sending } of recordingSummary(recorded()).ranks) {
      expect(busy).toBeGreaterThan(0);
      expect(busy + waiting + sending).toBeLessThanOrEqual(whole + 1e-9);
    }
  });

  test('the report names the schedule, plan and recording, and all ranks', () => {
    const report = results[0]!.report!;
    expect(report).toContain(`${one.schedule}: ${one.ranks} rank`);
    expect(report).toMatch(/planned\s+recorded\n\s+one step\s+[\d.]+\s+[\d.]+\n\s+bubble\s+[\d.]+%\s+[\d.]+%/);
    expect(report.match(/^rank \d+ │/gm)?.length).toBe(2 * one.ranks);
    expect(report).toMatch(/tokens\/s, [\d.]+ steps\/s/);
    expect(recordedSimulation(recorded()).makespan).toBeGreaterThan(0);
  });
});

describe('clocks', () => {
  test('an offset is found from trips there and back, to within half of one', () => {
    const began = performance.now();
    const channel = { sendObject: () => undefined, recvObject: () => performance.now() + 1234 };
    const offset = clockOffset(channel as unknown as Parameters<typeof clockOffset>[0], 0);
    expect(Math.abs(offset - 1234)).toBeLessThanOrEqual(performance.now() - began);
  });

  test('what was moved once need not be moved again', async () => {
    const { ranks } = await run({ mode: 'threads', schedule: '1F1B', model: 'mlp', ranks: 3, microbatches: 4 });
    const right = ranks[0]!.recording!;
    const messages = messagesOf(Schedule.fromJSON(right.schedule));
    for (let i = 1; i < 100; i++) {
      const late = (times: readonly number[]): number[] =>
        times.map((time) => (time < 0 ? time : time + i * 33.333_331));
      const steps = right.steps.map((step) => ({
        ...step,
        ranks: step.ranks.map((record, rank) => ({
          ...record,
          ...(rank === i % 3 ? { start: late(record.start), ready: late(record.ready), stop: late(record.stop) } : {}),
        })),
      }));
      const settled = settleClocks({ ...right, steps });
      expect(settleClocks(settled)).toBe(settled);
      const events = byText(recordedActions(settled));
      for (const [send, receive] of messages)
        expect(events.get(receive)?.end).toBeGreaterThanOrEqual(events.get(send)!.start);
    }
  });

  test('what is left of a difference is taken out: no message comes before it was sent', async () => {
    const { ranks } = await run({ mode: 'threads', schedule: '1F1B', model: 'mlp', ranks: 2, microbatches: 4 });
    const right = ranks[0]!.recording!;
    expect(settleClocks(right)).toBe(right);
    const late = (times: readonly number[]): number[] => times.map((time) => (time < 0 ? time : time + 50));
    const steps = right.steps.map((step) => ({
      ...step,
      ranks: step.ranks.map((record, rank) =>
        rank === 1
          ? record
          : { ...record, start: late(record.start), ready: late(record.ready), stop: late(record.stop) },
      ),
    }));
    const settled = settleClocks({ ...right, steps });
    const messages = messagesOf(Schedule.fromJSON(right.schedule));
    right.steps.forEach((_, at) => {
      const events = byText(recordedActions(settled, at));
      for (const [send, receive] of messages) {
        const [from, to] = [events.get(send), events.get(receive)];
        if (from !== undefined && to !== undefined) expect(to.end + 1e-6).toBeGreaterThanOrEqual(from.start);
      }
    });
  });
});

describe('in this process', () => {
  const runtimeOf = (record: unknown): PipelineRuntime =>
    new PipelineRuntime(new PipelineStage(new nn.Linear(2, 2), 0, 1), 'GPipe', {
      microbatches: 2,
      lossFn: (output: never) => (output as ReturnType<typeof ones>).sum(),
      record: record as boolean,
    });

  test('nothing is recorded unless it is asked for, and a step costs no tensors', () => {
    expect(runtimeOf(undefined).recorder).toBeNull();
    expect(runtimeOf(false).recorder).toBeNull();
    const runtime = runtimeOf(true);
    scope(() => void runtime.step(ones([4, 2])));
    expect(runtime.recorder?.timeline().map(({ action }) => formatAction(action))).toEqual([
      '0F0',
      '0F1',
      '0B0',
      '0B1',
    ]);
  });

  test('writes a trace', () => {
    const runtime = runtimeOf(true);
    scope(() => void runtime.step(zeros([4, 2])));
    const folder = mkdtempSync(join(tmpdir(), 'recorder-'));
    try {
      const path = runtime.recorder!.writeTrace(join(folder, 'trace.json'))!;
      const trace = JSON.parse(readFileSync(path, 'utf8')) as ChromeTrace;
      expect(trace.traceEvents.filter(({ ph }) => ph === 'X').length).toBe(4);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('what is wrong is said', () => {
    expect(() => runtimeOf('yes')).toThrow("record is 'yes'; give true or a Recorder");
    expect(() => new Recorder({ step: 3 } as object)).toThrow("unknown option 'step' (did you mean 'steps'?)");
    expect(() => new Recorder({ steps: 0 })).toThrow('steps is 0; give a whole number of at least 1');
    const recorder = new Recorder();
    expect(() => recorder.gather()).toThrow('nothing is recorded yet');
    expect(recorder.lastStep).toBeNull();
    scope(() => void runtimeOf(recorder).step(ones([4, 2])));
    expect(() => runtimeOf(recorder).step(ones([4, 2]))).toThrow('it records another runtime already');
  });

  test('a step that fails leaves what it did, and is not counted as ended', () => {
    const runtime = runtimeOf(true);
    scope(() => void runtime.step(ones([4, 2])));
    expect(() => runtime.step(ones([4, 3]))).toThrow('slot 0 (0F0)');
    expect(runtime.recorder?.lastStep?.step).toBe(0);
    expect(runtime.recorder?.stepCount).toBe(2);
  });
});

describe('PIPEWRIGHT_DEBUG', () => {
  const one: Case = { mode: 'threads', schedule: 'GPipe', model: 'mlp', ranks: 2, microbatches: 2 };

  test('1 prints steps and their times, by rank', async () => {
    const lines = (await run(one, { PIPEWRIGHT_DEBUG: '1' })).stderr.trim().split('\n');
    expect(
      lines.filter((line) => line.startsWith('[rank 1]')).map((line) => line.replace(/[\d.]+ ms/, 'T ms')),
    ).toEqual([
      '[rank 1] step 0 begins',
      '[rank 1] step 0 took T ms',
      '[rank 1] step 1 begins',
      '[rank 1] step 1 took T ms',
      '[rank 1] eval 2 begins',
      '[rank 1] eval 2 took T ms',
      '[rank 1] step 3 begins',
      '[rank 1] step 3 took T ms',
      '[rank 1] step 4 begins',
      '[rank 1] step 4 took T ms',
    ]);
  });

  test('2 prints every action', async () => {
    const lines = (await run(one, { PIPEWRIGHT_DEBUG: '2' })).stderr.trim().split('\n');
    const first = lines
      .filter((line) => line.startsWith('[rank 0] step 0 '))
      .map((line) => line.replace(/[\d.]+ ms/, 'T ms'));
    expect(first).toContain('[rank 0] step 0 slot 0 0F0 T ms');
    expect(first).toContain('[rank 0] step 0 slot 1 0SEND_F0 T ms');
  });

  test('another value is refused', async () => {
    await expect(run(one, { PIPEWRIGHT_DEBUG: 'yes' })).rejects.toThrow(
      "PIPEWRIGHT_DEBUG is 'yes'; give 1 (steps) or 2",
    );
  });
});
