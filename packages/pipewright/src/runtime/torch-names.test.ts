/** @file Schedules under PyTorch's class names. */
import { scheduleDefinitions } from '@pipewright/schedule';
import { nn, ones, scope, type Tensor } from '@pipewright/torch';
import { expect, test } from 'vitest';
import * as library from '../index.ts';
import { getScheduleClass, PipelineRuntime, PipelineStage } from '../index.ts';

const lossFn = (output: Tensor): Tensor => output.sum();
const stagesOf = (count: number): PipelineStage[] =>
  Array.from({ length: count }, (_, i) => new PipelineStage(new nn.Linear(2, 2), i, count));

test.each(scheduleDefinitions.map(({ name, hasBackward }) => [name, hasBackward] as const))(
  'the class of %s runs it',
  (name, hasBackward) => {
    const Class = getScheduleClass(name.toLowerCase());
    const count = /^(LoopedBFS|Interleaved.*|ZBV.*|DualPipeV|V.*|AdaptiveV)$/.test(name) ? 2 : 1;
    const runtime = new Class(stagesOf(count), { microbatches: 2, ...(hasBackward ? { lossFn } : {}) });
    expect(runtime).toBeInstanceOf(PipelineRuntime);
    expect(runtime.schedule.name).toBe(name);
    scope(() => void runtime.step(ones([2, 2])));
    expect(runtime.stepCount).toBe(1);
    for (const stage of runtime.stages)
      for (const parameter of stage.module.parameters()) expect(parameter.grad !== null).toBe(hasBackward);
  },
);

test("PyTorch's classes are exported, and found by their own names", () => {
  const classes: Record<string, unknown> = { ...library };
  const names = Object.keys(classes).filter((name) => name.startsWith('Schedule'));
  expect(names.sort().join(' ')).toMatchInlineSnapshot(
    `"Schedule1F1B ScheduleDualPipeV ScheduleForwardOnly ScheduleGPipe ScheduleInterleaved1F1B ScheduleInterleavedZeroBubble ScheduleLoopedBFS ScheduleZBVZeroBubble"`,
  );
  for (const name of names) expect(getScheduleClass(name)).toBe(classes[name]);
  expect(() => getScheduleClass('2F2B')).toThrow("there is no schedule '2F2B'");
});
