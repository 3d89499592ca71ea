import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { scheduleDefinitions } from '../generate/registry.ts';
import type { ScheduleDefinition } from '../generate/schedules/definition.ts';
import { lower } from '../lower/lower.ts';
import { mergeBackward } from '../lower/merge-backward.ts';
import { isComputeOp } from '../model/action.ts';
import { formatCsv, parseCsv } from '../model/csv.ts';
import { ScheduleError } from '../model/errors.ts';
import { Code, wordCode } from '../model/packed.ts';
import { rankToStages } from '../model/placement.ts';
import { Schedule } from '../model/schedule.ts';
import { simulateSteps } from '../pytorch/dry-run.ts';
import { findDeadlock } from './channels.ts';
import { validate } from './validate.ts';

/** What every schedule of the registry must do; a new one is covered by being registered. */

interface Shape {
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microbatches: number;
}

function shapes(definition: ScheduleDefinition): fc.Arbitrary<Shape> {
  const { least, most } = definition.stagesPerRank;
  return fc.record({
    ranks: fc.integer({ min: 1, max: 7 }),
    stagesPerRank: fc.integer({ min: least, max: Math.min(most, 4) }),
    microbatches: fc.integer({ min: 1, max: 17 }),
  });
}

/** The compute actions of each rank. */
const computeOf = (schedule: Schedule): string[] =>
  schedule.order.map((row, rank) =>
    row
      .map((item, slot) => (item !== null && isComputeOp(item) ? schedule.format(schedule.rows[rank]![slot]!) : ''))
      .filter((text) => text !== '')
      .join(' '),
  );

const runs = { numRuns: 40 };

describe.each(scheduleDefinitions.map((definition) => [definition.name, definition] as const))(
  '%s',
  (name, definition) => {
    const anyShape = shapes(definition);

    test('says which stages a rank holds: each stage once, as many on every rank, and those that the rank computes', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const schedule = buildSchedule(name, shape);
          const computed = schedule.rows.map(() => new Set<number>());
          schedule.forEachLeaf(({ rank, stage }) => computed[rank]!.add(stage));
          const held = computed.map((_, rank) => schedule.stagesOf(rank));
          expect(held).toEqual(computed.map((stages) => [...stages].sort((a, b) => a - b)));
          expect(held).toEqual(
            rankToStages({ ranks: shape.ranks, stages: schedule.stages, style: definition.placement }),
          );
          for (const stages of held) expect(stages).toHaveLength(schedule.stagesPerRank);
        }),
        runs,
      );
    });

    test('is legal at every shape, every pair computed once, and says what it is', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const schedule = buildSchedule(name, shape);
          expect(validate(schedule)).toEqual([]);
          const stages = shape.ranks * shape.stagesPerRank;
          expect(schedule).toMatchObject({ name, ranks: shape.ranks, stages, microbatches: shape.microbatches });
          expect(schedule.isComputeOnly).toBe(true);
          const { ranks, microbatches } = shape;
          expect(buildSchedule(name, { ranks, stages, microbatches }).equals(schedule)).toBe(true);
          let forwards = 0;
          let backwards = 0;
          schedule.forEachLeaf(({ code }) => {
            if (code === 1) forwards++;
            if (code === 3 || code === 4) backwards++;
          });
          expect([forwards, backwards]).toEqual([
            stages * shape.microbatches,
            definition.hasBackward ? stages * shape.microbatches : 0,
          ]);
        }),
        runs,
      );
    });

    test('lowers to an order that is free of deadlock and keeps the compute order', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const schedule = buildSchedule(name, shape);
          const before = schedule.toString();
          const lowered = lower(schedule);
          expect(validate(lowered)).toEqual([]);
          expect(findDeadlock(lowered, 'buffered')).toBeNull();
          expect(findDeadlock(lowered, 'rendezvous')).toBeNull();
          expect(computeOf(lowered)).toEqual(computeOf(schedule));
          expect(schedule.toString()).toBe(before);
          const steps = simulateSteps(lowered);
          expect(computeOf(steps)).toEqual(computeOf(schedule));
        }),
        runs,
      );
    });

    test('lowers as PyTorch does, and merged, with the same guarantees', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const schedule = buildSchedule(name, shape);
          const torch = lower(schedule, { compat: 'torch' });
          expect(validate(torch)).toEqual([]);
          expect(computeOf(torch)).toEqual(computeOf(schedule));
          const merged = lower(schedule, { merge: true, unshardWindow: 1, reduceGrad: 'end' });
          expect(validate(merged)).toEqual([]);
          expect(computeOf(merged)).toEqual(computeOf(mergeBackward(schedule)));
        }),
        { numRuns: 20 },
      );
    });

    test('receives stand at their latest safe point', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const lowered = lower(
            buildSchedule(name, {
              ...shape,
              ranks: Math.min(shape.ranks, 4),
              microbatches: Math.min(shape.microbatches, 8),
            }),
            { unshardWindow: false, reduceGrad: 'none' },
          );
          lowered.rows.forEach((row, rank) => {
            row.forEach((word, slot) => {
              const text = lowered.format(word);
              if (!text.includes('RECV')) return;
              let next = slot + 1;
              while (lowered.format(row[next]!).includes('RECV')) next++;
              const moved = Array.from(row);
              moved.splice(next, 0, ...moved.splice(slot, 1));
              const rows = lowered.rows.map((other, r) => (r === rank ? Int32Array.from(moved) : other));
              expect(
                validate(lowered.with({ rows })),
                `${text} can move behind ${lowered.format(row[next]!)}`,
              ).not.toEqual([]);
            });
          });
        }),
        { numRuns: 6 },
      );
    });

    test('print and parse, JSON and CSV are inverse', () => {
      fc.assert(
        fc.property(anyShape, fc.boolean(), (shape, lowering) => {
          const built = buildSchedule(name, shape);
          const schedule = lowering ? lower(built) : built;
          expect(Schedule.fromJSON(JSON.stringify(schedule)).diff(schedule)).toEqual([]);
          expect(Schedule.from({ ...schedule.toJSON(), order: schedule.order }).diff(schedule)).toEqual([]);
          expect(parseCsv(formatCsv(schedule)).diff(schedule)).toEqual([]);
          const withHeader = parseCsv(formatCsv(schedule, { format: 'pipewright' }));
          expect([withHeader.name, withHeader.diff(schedule)]).toEqual([name, []]);
        }),
        { numRuns: 20 },
      );
    });

    test('bubbles stand exactly where a rank waits for another one', () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          const schedule = buildSchedule(name, shape);
          const slotOf = new Map<string, number>();
          schedule.forEachLeaf(({ code, stage, microbatch, slot }) => {
            if (code !== Code.W) slotOf.set(`${code === Code.F ? 'F' : 'B'}${stage}/${microbatch}`, slot);
          });
          schedule.forEachLeaf(({ code, stage, microbatch, slot }) => {
            if (code === Code.W) return;
            const source =
              code === Code.F ? slotOf.get(`F${stage - 1}/${microbatch}`) : slotOf.get(`B${stage + 1}/${microbatch}`);
            expect(source === undefined || source < slot).toBe(true);
          });
          schedule.order.forEach((row, rank) => {
            row.forEach((item, slot) => {
              if (item === null || slot === 0 || row[slot - 1] !== null) return;
              const sources = schedule.composites.leavesOf(schedule.rows[rank]![slot]!).map((leaf) => {
                const [stage, microbatch] = [schedule.layout.stage(leaf), schedule.layout.microbatch(leaf)];
                return wordCode(leaf) === Code.F
                  ? slotOf.get(`F${stage - 1}/${microbatch}`)
                  : slotOf.get(`B${stage + 1}/${microbatch}`);
              });
              expect(sources, `rank ${rank} slot ${slot}`).toContain(slot - 1);
            });
            expect(row.at(-1)).not.toBeNull();
          });
        }),
        { numRuns: 20 },
      );
    });

    test("compat: 'torch' works or is refused with a reason", () => {
      fc.assert(
        fc.property(anyShape, (shape) => {
          try {
            const schedule = buildSchedule(name, { ...shape, compat: 'torch' });
            expect(definition.inTorch).toBe(true);
            // Only PyTorch's 1F1B misnumbers.
            if (name !== '1F1B') expect(computeOf(schedule)).toEqual(computeOf(buildSchedule(name, shape)));
          } catch (error) {
            expect(error).toBeInstanceOf(ScheduleError);
            expect(['BAD_SHAPE', 'UNSUPPORTED']).toContain((error as ScheduleError).code);
          }
        }),
        runs,
      );
    });
  },
);
