/** @file PyTorch's schedule visualizer: a schedule's rows by name, spaced by dependencies, drawn. Its faults are corrected. */

import { computationVisuals } from '../draw/palette.ts';
import { pictureOfRows } from '../draw/picture.ts';
import { drawSvg, type SvgOptions } from '../draw/svg/svg.ts';
import { buildSchedule } from '../generate/build-schedule.ts';
import { findSchedule } from '../generate/registry.ts';
import { lower } from '../lower/lower.ts';
import { type Action, formatAction, isComputeOp } from '../model/action.ts';
import { checkOptions, ScheduleError, show } from '../model/errors.ts';
import { Schedule, type ScheduleData, type ScheduleOrder } from '../model/schedule.ts';

/** How `getScheduleOps` builds rows. */
export interface ScheduleOpsOptions {
  /** Default: 1, or 2 where a schedule is made for several. */
  readonly numStagesPerRank?: number;
  /** Space the rows by dependencies and costs. */
  readonly addSpacing?: boolean;
  /** Rows with sends, receives and sharding. */
  readonly withComms?: boolean;
  /** With `withComms`: PyTorch's rows, each receive right before the compute that uses it. */
  readonly deferPpRecv?: boolean;
}

/**
 * The rows of a schedule by name: as built, spaced, or with communication.
 * @example getScheduleOps('ZBVZeroBubble', 2, 4, { addSpacing: true })
 */
export function getScheduleOps(
  schedule: string,
  ppDegree: number,
  numMicrobatches: number,
  options: ScheduleOpsOptions = {},
): ScheduleOrder {
  checkOptions('getScheduleOps', options, ['numStagesPerRank', 'addSpacing', 'withComms', 'deferPpRecv']);
  if (options.addSpacing === true && options.withComms === true) {
    throw new ScheduleError('BAD_OPTION', 'getScheduleOps: addSpacing and withComms exclude each other; choose one');
  }
  const { name } = findSchedule(schedule);
  const stagesPerRank = options.numStagesPerRank;
  const deferred = options.withComms === true && options.deferPpRecv === true;
  const built = buildSchedule(name, {
    ...(deferred && !isPlain(name) ? { compat: 'torch-2.15' } : {}),
    ranks: ppDegree,
    microbatches: numMicrobatches,
    ...(stagesPerRank === undefined ? {} : { stagesPerRank }),
  });
  if (deferred) return lower(built, { compat: 'torch-2.15', deferReceives: true }).order;
  if (options.withComms === true) return lower(built).order;
  return options.addSpacing === true ? addScheduleOpSpacing(built) : built.order;
}

/**
 * Rows in which bubbles stand for idle units of time when F, I and W take 1, B takes 2 and an overlapped pair takes 3, its
 * parts finishing one after the other. Rows stay with their ranks; compute actions only.
 * @example addScheduleOpSpacing({ order: [['0F0', '0B0'], ['1F0', '1B0']] })
 */
export function addScheduleOpSpacing(schedule: Schedule | ScheduleData | ScheduleOrder): ScheduleOrder {
  const source = readSchedule(schedule);
  const foreign = source.order.flat().find((item) => item !== null && !isComputeOp(item));
  if (foreign !== undefined && foreign !== null) {
    throw new ScheduleError(
      'NOT_COMPUTE_ONLY',
      `addScheduleOpSpacing: ${show(foreign.kind)} is no compute action; space the rows before lowering them`,
    );
  }
  return new Spacer(source).run();
}

/**
 * Rows drawn as they stand, as SVG: an action is as wide as its kind, a bubble leaves one unit free.
 * @example writeFileSync('zbv.svg', visualizeSchedule(getScheduleOps('ZBVZeroBubble', 2, 4, { addSpacing: true })))
 */
export function visualizeSchedule(schedule: Schedule | ScheduleData | ScheduleOrder, options: SvgOptions = {}): string {
  return drawSvg(pictureOfRows(readSchedule(schedule)), options, 'visualizeSchedule');
}

/** PyTorch's orders of one stage per rank have REDUCE_GRAD in them and a misnumbered forward, so they cannot be lowered. */
function isPlain(name: string): boolean {
  const { inTorch, stagesPerRank } = findSchedule(name);
  return !inTorch || stagesPerRank.most === 1;
}

function readSchedule(schedule: Schedule | ScheduleData | ScheduleOrder): Schedule {
  return Array.isArray(schedule)
    ? Schedule.from({ order: schedule })
    : Schedule.from(schedule as Schedule | ScheduleData);
}

/** Starts every action as soon as its row and its inputs let it; a composite when the inputs of all its parts are there. */
class Spacer {
  private readonly schedule: Schedule;
  /** When the output (the input gradient) of a stage and microbatch is there. */
  private readonly forwardEnd: Map<string, number> = new Map();
  private readonly gradientEnd: Map<string, number> = new Map();

  constructor(schedule: Schedule) {
    this.schedule = schedule;
  }

  run(): ScheduleOrder {
    const queues = this.schedule.order.map((row) => row.filter((item) => item !== null));
    const rows: (Action | null)[][] = queues.map(() => []);
    const time = queues.map(() => 0);
    const cursor = queues.map(() => 0);
    for (let progress = true; progress; ) {
      progress = false;
      queues.forEach((queue, rank) => {
        for (let item = queue[cursor[rank]!]; item !== undefined; item = queue[++cursor[rank]!]) {
          const start = this.readyAt(item, time[rank]!);
          if (start === null) return;
          for (; time[rank]! < start; time[rank]!++) rows[rank]!.push(null);
          rows[rank]!.push(item);
          time[rank] = this.finish(item, start);
          progress = true;
        }
      });
    }
    const stuck = queues.findIndex((queue, rank) => cursor[rank]! < queue.length);
    if (stuck >= 0) {
      const text = formatAction(queues[stuck]![cursor[stuck]!]!);
      throw new ScheduleError(
        'DEADLOCK',
        `addScheduleOpSpacing: rank ${stuck} waits for ever at ${text}; validate() shows why`,
        { rank: stuck },
      );
    }
    const end = Math.max(0, ...time);
    rows.forEach((row, rank) => {
      for (; time[rank]! < end; time[rank]!++) row.push(null);
    });
    return rows;
  }

  /** The earliest start from `now` on; null while an input is missing. */
  private readyAt(item: Action, now: number): number | null {
    let start = now;
    for (const { kind, stage, microbatch } of item.parts ?? [item]) {
      const needs: (number | undefined)[] = [];
      const input = `${stage - 1}/${microbatch}`;
      const own = `${stage}/${microbatch}`;
      const output = `${stage + 1}/${microbatch}`;
      if (kind === 'F' && stage > 0) needs.push(this.forwardEnd.get(input));
      if (kind === 'I' || kind === 'B') needs.push(this.forwardEnd.get(own));
      if ((kind === 'I' || kind === 'B') && stage < this.schedule.stages - 1) needs.push(this.gradientEnd.get(output));
      if (kind === 'W') needs.push(this.gradientEnd.get(own));
      for (const need of needs) {
        if (need === undefined) return null;
        start = Math.max(start, need);
      }
    }
    return start;
  }

  /** Notes the results of an action, the parts of a composite finishing one after the other; returns its end. */
  private finish(item: Action, start: number): number {
    let end = start;
    for (const { kind, stage, microbatch } of item.parts ?? [item]) {
      end += computationVisuals[kind].width;
      if (kind === 'F') this.forwardEnd.set(`${stage}/${microbatch}`, end);
      if (kind === 'I' || kind === 'B') this.gradientEnd.set(`${stage}/${microbatch}`, end);
    }
    return end;
  }
}
