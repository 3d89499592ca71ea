/** @file Requests to the worker: what comes back through another thread is what the page would have computed. */
import { buildSchedule, formatCsv, renderSvg } from '@pipewright/schedule';
import { describe, expect, test } from 'vitest';
import { judge, keepJudged, readSchedule } from './edit.ts';
import { explore } from './explore.ts';
import {
  answerOpening,
  answerRequest,
  areQuick,
  type ExploreJob,
  type ExploreRequest,
  requestOf,
} from './explore-request.ts';
import { idleByCause } from './idle.ts';
import { defaults, type Settings } from './settings.ts';
import { unpackExplored, unpackJudged } from './transfer.ts';

const settings: Settings = { ...defaults, ranks: 3, microbatches: 6, costs: { ...defaults.costs, comm: [0.25] } };
const job = (name: string, more: Partial<Settings> = {}): ExploreJob => ({
  ...{ name, draw: true, plan: null },
  settings: { ...settings, ...more },
});

/** The answer as the page gets it. */
function answered(request: ExploreRequest): ReturnType<typeof unpackExplored> {
  const { answer, buffers } = answerRequest(structuredClone(request));
  const received = structuredClone(answer, { transfer: buffers });
  if ('error' in received) throw new Error(received.error);
  return unpackExplored(received.explored);
}

describe('a request', () => {
  test.each([
    ['1F1B', {}],
    ['1F1B', { lowered: true }],
    ['DualPipeV', {}],
    ['ZBVZeroBubble', { limit: [12] }],
  ] as const)('%s %j: times, memory, idle time and picture are the same on the other side', (name, more) => {
    const { settings: asked } = job(name, more);
    const [here, there] = [explore(name, asked, { draw: true, plan: null }), answered(requestOf(job(name, more)))];
    expect(there.schedule!.equals(here.schedule!)).toBe(true);
    expect(there).toMatchObject({ name, makespan: here.makespan, bubble: here.bubble, peak: here.peak, problem: null });
    expect(there.simulation!.toJSON()).toEqual(here.simulation!.toJSON());
    expect(there.simulation!.criticalPath).toEqual(here.simulation!.criticalPath);
    expect(there.simulation!.transfers()).toEqual(here.simulation!.transfers());
    expect(idleByCause(there.simulation!)).toEqual(idleByCause(here.simulation!));
    expect(renderSvg(there.lanes!.picture)).toBe(renderSvg(here.lanes!.picture));
    here.lanes!.lanes.forEach(({ main, beside }, rank) => {
      const other = there.lanes!.lanes[rank]!;
      expect(other.main.sums).toEqual(main.sums);
      expect(other.beside?.sums).toEqual(beside?.sums);
    });
  });

  test('without a picture only the numbers come back; what cannot be built says why', () => {
    const { schedule, simulation, lanes, makespan } = answered(requestOf({ ...job('GPipe'), draw: false }));
    expect({ schedule, simulation, lanes }).toEqual({ schedule: null, simulation: null, lanes: null });
    expect(makespan).toBe(explore('GPipe', settings, { draw: false, plan: null }).makespan);
    expect(answered(requestOf(job('nothing'))).problem).toContain('nothing');
  });

  test('the page does itself what is small and needs no search', () => {
    expect(areQuick([job('1F1B'), job('GPipe'), job('nothing')])).toBe(true);
    expect(areQuick([job('AdaptiveV')])).toBe(true);
    expect(areQuick([job('AdaptiveV', { limit: [4] })])).toBe(false);
    expect(areQuick([job('1F1B', { ranks: 64, microbatches: 512 })])).toBe(false);
  });
});

describe('a file', () => {
  const { costs } = defaults;
  const opened = (text: string): ReturnType<typeof unpackJudged> => {
    const { answer, buffers } = answerOpening(structuredClone({ text, costs }));
    const received = structuredClone(answer, { transfer: buffers });
    if ('error' in received) throw new Error(received.error);
    return unpackJudged(received.judged);
  };
  const order = formatCsv(buildSchedule('DualPipeV', { ranks: 2, microbatches: 6 }));

  test.each([
    ['valid', order],
    ['an action is missing', order.replace('0F1', '')],
    ['a deadlock', '0F0,0B0\n1B0,1F0'],
  ])('%s: rules, times and picture are the same on the other side', (_, text) => {
    const [here, there] = [judge(readSchedule(text), costs), opened(text)];
    expect(there.schedule.equals(here.schedule)).toBe(true);
    expect(there.violations).toEqual(here.violations);
    expect(there.problem).toBe(here.problem);
    expect(there.simulation?.toJSON()).toEqual(here.simulation?.toJSON());
    expect(renderSvg(there.lanes.picture)).toBe(renderSvg(here.lanes.picture));
    // It is not judged again, unless other costs are asked for.
    keepJudged(there, costs);
    expect(judge(there.schedule, costs)).toBe(there);
    expect(judge(there.schedule, { ...costs, F: [3] })).not.toBe(there);
  });

  test('that is no schedule says why', () => {
    expect(() => opened('0F0,0X1')).toThrow("cannot read '0X1'");
  });
});
