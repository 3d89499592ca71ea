/** @file Overlapped actions on the CPU: side by side, with the numbers and the errors of one after the other. */
import { buildSchedule, formatAction, recordedActions } from '@pipewright/schedule';
import { distributed, liveTensors, scope, type Tensor } from '@pipewright/torch';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { batch, expectClose, gradsOf, layers, make, plainGrads } from '../../../testing/layers.ts';
import { Recorder } from '../../recording/recorder.ts';
import type { StepError } from '../errors.ts';

const before = distributed.getNumThreads();
beforeAll(() => distributed.setNumThreads(3));
afterAll(() => distributed.setNumThreads(before));

const schedule = buildSchedule('DualPipeV', { ranks: 1, microbatches: 6 });
const overlapped = schedule.order[0]!.flatMap((cell) => (cell?.parts == null ? [] : [cell.parts]));

test.each([
  ['plain stages', {}],
  ['checkpointed stages', { checkpoint: true }],
])('%s: gradients equal plain training, nothing is left', (_name, options) => {
  const modules = layers(2);
  const data = batch(12);
  const expected = plainGrads(modules, data);
  const { runtime } = make(modules, schedule, {}, () => options);
  runtime.step(data.x, { target: data.y, returnOutputs: false });
  expectClose(gradsOf(modules), expected);
  const live = liveTensors();
  for (let i = 0; i < 3; i++) {
    for (const module of modules) module.zeroGrad();
    runtime.step(data.x, { target: data.y, returnOutputs: false });
    scope(() => expectClose(gradsOf(modules), expected));
  }
  expect(liveTensors()).toBe(live);
  expect(distributed.getNumThreads()).toBe(3);
});

test('a frozen stage has no backward to run beside', () => {
  const modules = layers(2);
  modules[1]!.requiresGrad_(false);
  const data = batch(12);
  const expected = plainGrads(modules, data);
  const { runtime } = make(modules, schedule);
  runtime.step(data.x, { target: data.y });
  expectClose(gradsOf(modules), expected);
});

test('the recording shows forwards inside backwards', () => {
  const recorder = new Recorder();
  const { runtime } = make(layers(2), schedule, { record: recorder });
  const { x, y } = batch(12);
  runtime.step(x, { target: y });
  const times = new Map(recordedActions(recorder.gather()!).map((event) => [formatAction(event.action), event]));
  expect(overlapped.length).toBeGreaterThan(0);
  for (const [forward, backward] of overlapped) {
    const [f, b] = [forward, backward].map((part) => times.get(formatAction(part!))!);
    expect(b!.start).toBeLessThanOrEqual(f!.start);
    expect(b!.end).toBeGreaterThanOrEqual(f!.end);
  }
});

test('a custom function for backwards makes them run one after the other', () => {
  const modules = layers(2);
  const data = batch(12);
  const expected = plainGrads(modules, data);
  const { runtime } = make(modules, schedule);
  let own = 0;
  runtime.registerCustomFunction('B', (_action, context) => {
    own++;
    context.run();
  });
  runtime.step(data.x, { target: data.y });
  expect(own).toBe(schedule.toString().match(/\dB\d/g)?.length);
  expectClose(gradsOf(modules), expected);
});

describe('an error', () => {
  const failure = (run: () => unknown): StepError => {
    try {
      run();
    } catch (error) {
      return error as StepError;
    }
    throw new Error('expected an error');
  };

  test.each(['F', 'B'] as const)('in %s is told as that of its part, and nothing is left', (kind) => {
    const [forward, backward] = overlapped[0]!;
    let armed = true;
    let calls = 0;
    const modules = layers(2, (fc, x: Tensor) => {
      const result = fc.forward(x);
      if (armed && kind === 'B')
        result.registerHook(() => {
          if (calls > 0) throw new RangeError('in the backward');
        });
      return result.tanh();
    });
    const { runtime } = make(modules, schedule);
    const remove = runtime.addHook({
      before: (action) => {
        if (armed && action.kind === 'F' && formatAction(action) === formatAction(forward!)) {
          calls++;
          if (kind === 'F') throw new RangeError('in the forward');
        }
      },
    });
    const { x, y } = batch(12);
    const live = liveTensors();
    const error = failure(() => runtime.step(x, { target: y }));
    expect(error.cause ?? error).toMatchObject({
      message: expect.stringContaining(kind === 'F' ? 'forward' : 'backward'),
    });
    expect(error.action).toBe(formatAction((kind === 'F' ? forward : backward)!));
    for (const module of modules) module.zeroGrad();
    runtime.dispose();
    expect(liveTensors()).toBe(live);
    armed = false;
    remove();
    runtime.step(x, { target: y, returnOutputs: false });
    const found = gradsOf(modules);
    expectClose(found, plainGrads(modules, { x, y }));
  });
});
