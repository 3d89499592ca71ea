/** @file Copies of a tied parameter that become unlike: refused on all ranks, by name, with the way out. */
import { nn, ones } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';
import { batch, layers, make } from '../../testing/layers.ts';

interface Step {
  readonly code: string | null;
  readonly message: string;
  readonly grad: number[][] | null;
  readonly weight: number[][];
}

const program = new URL('../../testing/ranks/tied.mjs', import.meta.url);
const tied = (): object => ({ ties: { 'fc.weight': 'w' } });

test('a copy that was replaced is refused on all ranks, and a new runtime goes on with it', async () => {
  const events = ['replaced on all stages', 'replaced on stage 1'];
  const ranks = await casesOnThreads<Step[]>(program, 2, events);
  const replaced = (stage: number): string =>
    `step: the tied parameter 'w' ('weight' of stage ${stage}) was replaced by another one since the first step`;
  events.forEach((event, at) => {
    const [a, b] = ranks.map((cases) => cases[at]!) as [Step[], Step[]];
    expect([a[1]!.code, b[1]!.code]).toEqual([event.includes('all') ? 'TIE_MISMATCH' : 'STEP_REFUSED', 'TIE_MISMATCH']);
    expect(a[1]!.message).toContain(replaced(event.includes('all') ? 0 : 1));
    expect(b[1]!.message).toContain(replaced(1));
    expect([a[1]!.grad, b[1]!.grad]).toEqual([null, null]);
    for (const step of [0, 2]) {
      expect([a[step]!.code, b[step]!.code]).toEqual([null, null]);
      expect(a[step]!.grad).not.toBeNull();
      expect(a[step]!.grad).toEqual(b[step]!.grad);
      expect(a[step]!.weight).toEqual(b[step]!.weight);
    }
  });
});

test('a copy that was replaced is refused on one rank, before anything runs', () => {
  const { runtime, modules } = make(layers(2), 'LoopedBFS', {}, tied);
  const { x, y } = batch(8);
  runtime.step(x, { target: y });
  modules[1]!.fc.weight = new nn.Parameter(ones([4, 4], { dtype: 'float64' }));
  const calls = modules[0]!.calls;
  expect(() => runtime.step(x, { target: y })).toThrow("the tied parameter 'w' ('fc.weight' of stage 1) was replaced");
  expect(modules[0]!.calls).toBe(calls);
  expect(runtime.eval(x)?.shape).toEqual([8, 4]);
});

test('copies of different shapes are refused in every step, and nothing runs', () => {
  const { runtime, modules } = make(layers(2), 'LoopedBFS', {}, tied);
  modules[1]!.fc.weight = new nn.Parameter(ones([4, 5], { dtype: 'float64' }));
  const { x, y } = batch(8);
  for (let i = 0; i < 2; i++)
    expect(() => runtime.step(x, { target: y })).toThrow(
      "the tied parameter 'w' is float64[4, 4] on stage 0 and float64[4, 5] on stage 1; tie parameters of one shape",
    );
  expect(modules[0]!.calls).toBe(0);
});

describe('a copy that is frozen on one stage only', () => {
  const frozen = (stage: number, elsewhere: string): string =>
    `the tied parameter 'w' is frozen on stage ${stage} and learned on ${elsewhere}, so that its copies would not stay equal; freeze it on all stages`;

  test('is refused on all ranks before the first step, and steps run once all are alike', async () => {
    const ranks = await casesOnThreads<Step[]>(program, 2, [
      'frozen on stage 0 at first',
      'frozen on stage 1 at first',
      'frozen on all stages later',
    ]);
    for (const stage of [0, 1])
      for (const cases of ranks) {
        const [first, ...rest] = cases[stage]!;
        expect(first!.code).toBe('NO_AGREEMENT');
        expect(first!.message).toContain(frozen(stage, `stage ${1 - stage}`));
        expect(first!.grad).toBeNull();
        for (const { code, grad } of rest) expect([code, grad]).toEqual([null, ranks[0]![stage]![1]!.grad]);
      }
    const everywhere = ranks.map((cases) => cases[2]!.map(({ code, grad }) => [code, grad === null]));
    for (const steps of everywhere)
      expect(steps).toEqual([
        [null, false],
        [null, true],
        [null, true],
      ]);
  });

  test.each([0, 1])('is refused where it was frozen after a step: stage %i', async (stage) => {
    const ranks = await casesOnThreads<Step[]>(program, 2, [`frozen on stage ${stage} later`]);
    const own = ranks[stage]![0]!;
    expect(own.map(({ code }) => code)).toEqual([null, 'TIE_MISMATCH', 'BROKEN']);
    expect(own[1]!.message).toContain(frozen(stage, 'another stage'));
    expect(own[1]!.grad).toBeNull();
    const other = ranks[1 - stage]![0]!;
    expect(other[2]!.code).not.toBeNull();
    // It hears of it as soon as it asks: the cause, or, where that has not reached it yet, who is gone.
    const heard = other.map(({ message }) => message).join('; ');
    expect(
      [frozen(stage, 'another stage'), `rank ${stage} has left the group`].some((text) => heard.includes(text)),
    ).toBe(true);
  });

  test('is refused on one rank before anything runs', () => {
    const { runtime, modules } = make(layers(2), 'LoopedBFS', {}, tied);
    const { x, y } = batch(8);
    modules[1]!.fc.weight.requiresGrad_(false);
    expect(() => runtime.step(x, { target: y })).toThrow(frozen(1, 'stage 0'));
    modules[1]!.fc.weight.requiresGrad_(true);
    runtime.step(x, { target: y });
    modules[0]!.fc.weight.requiresGrad_(false);
    const { calls } = modules[0]!;
    expect(() => runtime.step(x, { target: y })).toThrow(`step: ${frozen(0, 'stage 1')}`);
    expect(modules[0]!.calls).toBe(calls);
  });
});
