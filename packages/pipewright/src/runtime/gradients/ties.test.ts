/** @file Copies of a tied parameter that become unlike: refused on all ranks, by name, with the way out. */
import { buildSchedule } from '@pipewright/schedule';
import { nn, ones } from '@pipewright/torch';
import { describe, expect, test } from 'vitest';
import { casesOnThreads } from '../../../testing/launch.ts';
import { batch, layers, make } from '../../../testing/layers.ts';
import { type AgreedStage, agree } from '../agreement.ts';
import type { TiedCopy } from './ties.ts';

interface Step {
  readonly code: string | null;
  readonly message: string;
  readonly grad: number[][] | null;
  readonly weight: number[][];
}

const program = new URL('../../../testing/ranks/tied.mjs', import.meta.url);
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

test('copies of different shapes or types are refused on all ranks before anything is sent, and steps run once they are alike', async () => {
  const ranks = await casesOnThreads<Step[]>(program, 2, [
    'of another shape on stage 1 at first',
    'of another type on stage 1 at first',
  ]);
  const reasons = [
    'float32[3, 3] on stage 0 and float32[3, 4] on stage 1; tie parameters of one shape',
    'float32[3, 3] on stage 0 and float64[3, 3] on stage 1; tie parameters of one type and shape',
  ];
  for (const cases of ranks)
    reasons.forEach((reason, at) => {
      const steps = cases[at]!;
      expect(steps.map(({ code }) => code)).toEqual(['NO_AGREEMENT', null, null]);
      expect(steps[0]!.message).toContain(`the ranks do not fit together: the tied parameter 'w' is ${reason}`);
      expect(steps[2]!.weight).toEqual(ranks[0]![at]![2]!.weight);
    });
});

test('a loss on some ranks only is refused on all of them', async () => {
  const ranks = await casesOnThreads<Step[]>(program, 2, ['without a loss on stage 0']);
  for (const [steps] of ranks)
    for (const { code, message, grad } of steps!) {
      expect([code, grad]).toEqual(['NO_AGREEMENT', null]);
      expect(message).toContain(
        'there is a lossFn on rank 1 and none on rank 0, which would run no backwards; give it',
      );
    }
});

test('one tensor in two ties is refused', () => {
  const modules = layers(2);
  const shared = Object.assign(modules[0]!, { again: modules[0]!.fc });
  const { runtime } = make([shared, modules[1]!], 'LoopedBFS', {}, (stage) => ({
    ties: stage === 0 ? { 'fc.weight': 'a', 'again.weight': 'b' } : { 'fc.weight': 'a' },
  }));
  const { x, y } = batch(8);
  expect(() => runtime.step(x, { target: y })).toThrow(
    "one tensor is in the ties 'a' and 'b' ('fc.weight' of stage 0 and 'again.weight' of stage 0), so that it would get the gradients of both and copies elsewhere would not stay equal; give one tensor one tie",
  );
  expect(shared.calls).toBe(0);
});

test('shards that are cut differently are refused: their gradients cannot be summed', () => {
  const refused = (...cuts: (TiedCopy['cut'] | null)[]): string => {
    const stages = cuts.map((cut, stage): AgreedStage => {
      const copy = { path: 'weight', name: 'w', dtype: 'float32', shape: [2, 4], frozen: false, tensor: stage };
      const wiring = { inputs: [], ties: { weight: 'w' }, inputArgs: null, outputArgs: null };
      return { stage, ...wiring, tied: [{ ...copy, cut }], learns: true };
    });
    try {
      agree(null, buildSchedule('LoopedBFS', { ranks: 1, stages: 2, microbatches: 1 }), stages);
      return 'agreed';
    } catch (error) {
      return (error as Error).message;
    }
  };
  const cut = (rows: number, offset: number): TiedCopy['cut'] => ({ globalShape: [rows, 4], dim: 0, offset });
  expect([
    refused(cut(4, 2), cut(4, 2)),
    refused(null, cut(4, 2)),
    refused(cut(4, 0), cut(6, 0)),
    refused(cut(4, 0), cut(4, 2)),
  ]).toMatchInlineSnapshot(`
    [
      "agreed",
      "the ranks do not fit together: the tied parameter 'w' is float32[2, 4] on stage 0 and float32[2, 4] (from index 2 along dimension 0 of [4, 4]) on stage 1; tie parameters of one shape, cut alike",
      "the ranks do not fit together: the tied parameter 'w' is float32[2, 4] (from index 0 along dimension 0 of [4, 4]) on stage 0 and float32[2, 4] (from index 0 along dimension 0 of [6, 4]) on stage 1; tie parameters of one shape, cut alike",
      "the ranks do not fit together: the tied parameter 'w' is float32[2, 4] (from index 0 along dimension 0 of [4, 4]) on stage 0 and float32[2, 4] (from index 2 along dimension 0 of [4, 4]) on stage 1; tie parameters of one shape, cut alike",
    ]
  `);
});

describe('a copy that is frozen on one stage only', () => {
  const frozen = (stage: number, elsewhere: string): string =>
    `the tied parameter 'w' is frozen on stage ${stage} and learned on ${elsewhere}, so that its copies would not stay equal; freeze it on all stages`;

  test('is refused on all ranks before the first step, and steps run once all are alike', async () => {
    const ranks = await casesOnThreads<Step[]>(program, 2, [
      'frozen on stage 0 at first',
      'frozen on stage 1 at first',
      'frozen on all stages later',
      'frozen on all stages later, over lanes',
    ]);
    for (const stage of [0, 1])
      for (const cases of ranks) {
        const [first, ...rest] = cases[stage]!;
        expect(first!.code).toBe('NO_AGREEMENT');
        expect(first!.message).toContain(frozen(stage, `stage ${1 - stage}`));
        expect(first!.grad).toBeNull();
        for (const { code, grad } of rest) expect([code, grad]).toEqual([null, ranks[0]![stage]![1]!.grad]);
      }
    const everywhere = ranks.flatMap((cases) =>
      cases.slice(2).map((steps) => steps.map(({ code, grad }) => [code, grad === null])),
    );
    for (const steps of everywhere)
      expect(steps).toEqual([
        [null, false],
        [null, true],
        [null, true],
      ]);
  });

  test.each([
    [0, ''],
    [1, ''],
    [0, ', over lanes'],
    [1, ', over lanes'],
  ])('is refused in the step after it was frozen, on all ranks that hold one: stage %i%s', async (stage, way) => {
    const ranks = await casesOnThreads<Step[]>(program, 2, [`frozen on stage ${stage} later${way}`]);
    for (const [steps] of ranks) {
      expect(steps!.map(({ code }) => code)).toEqual([null, 'TIE_MISMATCH', 'BROKEN']);
      expect(steps![1]!.message).toContain(frozen(stage, `stage ${1 - stage}`));
    }
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
