/** @file Copies of a tied parameter that become unlike: refused on all ranks, by name, with the way out. */
import { nn, ones } from '@pipewright/torch';
import { expect, test } from 'vitest';
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
