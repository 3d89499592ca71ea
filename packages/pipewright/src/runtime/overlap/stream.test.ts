/** @file Overlapped actions in two streams, without a GPU: what waits for what. */
import { expect, test, vi } from 'vitest';
import type { PlannedAction } from '../row/planned-action.ts';
import type { StepState } from '../row/step-state.ts';
import { StreamOverlap } from './stream.ts';

const { log, main, streams } = vi.hoisted(() => {
  const log: string[] = [];
  class Stream {
    readonly name: string;
    constructor(_options?: unknown, name = 'side') {
      this.name = name;
    }
    waitStream(other: Stream): void {
      log.push(`${this.name} waits for ${other.name}`);
    }
  }
  const main = new Stream(undefined, 'main');
  return { log, main, streams: { Stream, current: main } };
});

vi.mock('@pipewright/torch', async (original) => ({
  ...(await original<object>()),
  cuda: {
    Stream: streams.Stream,
    currentStream: () => streams.current,
    withStream: (stream: typeof main, body: () => unknown) => {
      streams.current = stream;
      try {
        return body();
      } finally {
        streams.current = main;
      }
    },
  },
}));

test('parameters that both parts compute with are gathered for both streams', () => {
  const pending = new Set([0]);
  const parallel = {
    ready: (stage: number) => {
      if (pending.delete(stage)) log.push(`stage ${stage} is gathered for ${streams.current.name}`);
      return null;
    },
  };
  const stage = { stageIndex: 0, releaseInputs: () => log.push('inputs are freed') };
  const part = (kind: string, microbatch: number, index: number): PlannedAction =>
    ({
      ...{ kind, microbatch, index, parts: [], links: { stage }, place: { slot: 0, action: kind } },
      action: { kind, stage: 0, microbatch },
      execute: () => log.push(`${kind} in ${streams.current.name}`),
    }) as unknown as PlannedAction;
  const context = { recorder: null, hooks: [], parallel };
  const step = { context, current: null, keepsInputs: false } as unknown as StepState;
  new StreamOverlap().run([part('F', 1, 1), part('B', 0, 2)], step);
  expect(log).toEqual([
    'stage 0 is gathered for main',
    'side waits for main',
    'F in side',
    'B in main',
    'main waits for side',
    'inputs are freed',
  ]);
});
