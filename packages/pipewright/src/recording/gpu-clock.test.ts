/** @file The clock of a GPU, with events of our own in its place. */
import { expect, test, vi } from 'vitest';
import { GpuClock } from './gpu-clock.ts';

vi.mock('@pipewright/torch', async (original) => {
  let now = 0;
  class Event {
    time = 0;
    record(): void {
      this.time = ++now;
    }
    synchronize(): void {}
    elapsedTime(end: Event): number {
      return end.time - this.time;
    }
  }
  return { ...(await original<object>()), cuda: { Event, currentStream: () => null } };
});

test('marks are told in the order of the stream; those of a step that failed are not told by the next one', () => {
  const clock = GpuClock.on('cuda:0', 4)!;
  const step = (marks: readonly number[]): number[] => {
    clock.beginStep();
    for (const at of marks) clock.mark(at);
    const times = new Float64Array(4).fill(-1);
    clock.read(times);
    return [...times];
  };
  const [first, second, third] = step([2, 0]) as [number, number, number];
  expect([first > third, second]).toEqual([true, -1]);
  clock.beginStep();
  clock.mark(3); // here it fails
  expect(step([1]).map((time) => time >= 0)).toEqual([false, true, false, false]);
});
