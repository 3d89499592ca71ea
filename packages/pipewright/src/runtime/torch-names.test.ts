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

test('the number of microbatches may stand before the options, as in PyTorch', () => {
  const [stage] = stagesOf(1) as [PipelineStage];
  const runtime = new library.ScheduleGPipe(stage, 4, { lossFn });
  const losses: Tensor[] = [];
  runtime.step(ones([8, 2]), { losses });
  expect([runtime.schedule.microbatches, losses.length]).toEqual([4, 4]);
  expect(new library.ScheduleForwardOnly(stage, 2).schedule.microbatches).toBe(2);
  const refused = (...args: unknown[]): unknown => {
    try {
      return Reflect.construct(library.ScheduleGPipe, [stage, ...args]);
    } catch (error) {
      return [(error as { code?: string }).code, (error as Error).message];
    }
  };
  expect([
    refused(0, { lossFn }),
    refused(2.5, { lossFn }),
    refused('4', { lossFn }),
    refused(null, { lossFn }),
  ]).toMatchInlineSnapshot(`
    [
      [
        "BAD_OPTION",
        "ScheduleGPipe: the number of microbatches is 0; give a whole number of at least 1",
      ],
      [
        "BAD_OPTION",
        "ScheduleGPipe: the number of microbatches is 2.5; give a whole number of at least 1",
      ],
      [
        "BAD_OPTION",
        "ScheduleGPipe: the number of microbatches is '4'; give a whole number of at least 1",
      ],
      [
        "BAD_OPTION",
        "ScheduleGPipe: the number of microbatches is null; give a whole number of at least 1",
      ],
    ]
  `);
  expect(refused(4, { lossFn, microbatches: 2 })).toMatchInlineSnapshot(`
    [
      "BAD_OPTION",
      "ScheduleGPipe: microbatches is 4 before the options and 2 among them; give it once",
    ]
  `);
});
