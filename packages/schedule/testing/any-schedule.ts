/** @file Schedules for property tests. */
import fc from 'fast-check';
import { buildSchedule } from '../src/generate/build-schedule.ts';
import { scheduleDefinitions } from '../src/generate/registry.ts';
import type { Schedule } from '../src/model/schedule.ts';

/** Every schedule that trains and that PyTorch has too. */
const names = scheduleDefinitions.filter(({ inTorch, hasBackward }) => inTorch && hasBackward).map(({ name }) => name);

/** One of them at a small shape. */
export const anySchedule: fc.Arbitrary<Schedule> = fc
  .record({
    name: fc.constantFrom(...names),
    ranks: fc.integer({ min: 2, max: 4 }),
    microbatches: fc.integer({ min: 2, max: 9 }),
  })
  .map(({ name, ranks, microbatches }) => buildSchedule(name, { ranks, microbatches }));
