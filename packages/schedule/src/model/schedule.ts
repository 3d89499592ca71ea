/**
 * @file A schedule: which rank does what, in which order. Immutable data with two forms: packed columns and `Action` objects.
 *
 * The cells live in packed columns, one `Int32Array` per rank (`rows`), one 32-bit word per cell (packed.ts); composites
 * such as `(0F3;3B1)OVERLAP_F_B` are words that point into `composites`. `order[rank][slot]` is a frozen view of the same
 * cells as `Action` objects (`null` is a bubble), made row by row when first read and then kept.
 *
 * Reading columns (passes, validate, simulate):
 *
 *     const { rows, layout, composites } = schedule;
 *     for (let rank = 0; rank < schedule.ranks; rank++) {
 *       const row = rows[rank]!;
 *       for (let slot = 0; slot < row.length; slot++) {
 *         const word = row[slot]!;
 *         const code = wordCode(word);                       // Code.F, Code.SendF, … ; Code.Bubble is 0
 *         if (code === Code.Bubble) continue;
 *         if (code === Code.Composite) { for (const leaf of composites.leavesOf(word)) … } // plain words
 *         const stage = layout.stage(word), microbatch = layout.microbatch(word);          // -1: none
 *       }
 *     }
 *
 * or `schedule.forEachLeaf((leaf) => …)` where speed does not matter. Words of two schedules may be compared only if
 * their `layout` is the same object. Writing columns: `ScheduleBuilder` (schedule-builder.ts). Columns are read-only:
 * nobody writes into the rows of a finished schedule.
 */

import { type Action, actionsEqual, formatAction } from './action.ts';
import { ColumnBuilder } from './column-builder.ts';
import { checkCount, checkFunction, checkOptions, ScheduleError, show } from './errors.ts';
import { Code, type CompositeTable, isComposite, Layout, unpack, wordCode } from './packed.ts';
import { checkEdges } from './stage-graph.ts';

/** A cell as a user may write it: an action, its text, or a bubble (`null` or empty text). */
export type Cell = Action | string | null;

/** `order[rank][slot]`; `null` is a bubble. */
export type ScheduleOrder = readonly (readonly (Action | null)[])[];

/** The output of stage `from` is an input of stage `to`. */
export type StageEdge = readonly [from: number, to: number];

/** A schedule written down by hand; what is left out is read off the order. */
export interface ScheduleData {
  readonly name?: string;
  readonly ranks?: number;
  readonly stages?: number;
  readonly microbatches?: number;
  /** `stageToRank[stage]`; default: where each stage is first met. */
  readonly stageToRank?: readonly number[];
  /** The stage graph; default: each stage feeds the next. */
  readonly edges?: readonly StageEdge[];
  readonly order: readonly (readonly Cell[])[];
}

/** What `JSON.stringify(schedule)` writes. */
export interface ScheduleJson {
  readonly format: 'pipewright-schedule';
  readonly version: 1;
  readonly name: string;
  readonly ranks: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly stageToRank: readonly number[];
  readonly edges?: readonly StageEdge[];
  readonly order: readonly (readonly (string | null)[])[];
}

/** One place where two schedules differ. */
export interface ScheduleDifference {
  /** `cell`, or the name of the field that differs. */
  readonly what: 'ranks' | 'stages' | 'microbatches' | 'stageToRank' | 'edges' | 'cell';
  readonly rank: number | null;
  readonly slot: number | null;
  /** Text here; null where there is no such cell. */
  readonly left: string | null;
  /** Text in the other schedule. */
  readonly right: string | null;
}

/** The packed columns a schedule is made of; `ScheduleBuilder` makes them. */
export interface ScheduleColumns {
  readonly name: string;
  readonly ranks: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly stageToRank: readonly number[];
  /** null: each stage feeds the next. */
  readonly edges: readonly StageEdge[] | null;
  readonly layout: Layout;
  readonly composites: CompositeTable;
  readonly rows: readonly Int32Array[];
}

/** A plain cell or a part of a composite, unpacked to numbers, as `forEachLeaf` gives it. */
export interface Leaf {
  readonly rank: number;
  readonly slot: number;
  readonly code: number;
  readonly stage: number;
  /** -1: none. */
  readonly microbatch: number;
  readonly word: number;
  /** Position among the parts of a composite; 0 for a plain action. */
  readonly part: number;
}

const columnNames = ['name', 'ranks', 'stages', 'microbatches', 'stageToRank', 'edges', 'layout', 'composites', 'rows'];
const dataFields = ['name', 'ranks', 'stages', 'microbatches', 'stageToRank', 'edges', 'order', 'format', 'version'];

/**
 * Which rank does what, in which order.
 * @example Schedule.from({ order: [['0F0', '0B0'], ['1F0', '1B0']] }).stages // 2
 */
export class Schedule implements ScheduleColumns {
  readonly name: string;
  readonly ranks: number;
  readonly stages: number;
  readonly microbatches: number;
  readonly stageToRank: readonly number[];
  readonly edges: readonly StageEdge[] | null;
  readonly layout: Layout;
  readonly composites: CompositeTable;
  /** The words of each rank. Where a schedule was built by name, bubbles are put in when this is first read. */
  declare readonly rows: readonly Int32Array[];
  /** The same rows, where bubbles may be missing: for passes that skip bubbles anyway. */
  readonly denseRows: readonly Int32Array[];
  /** Cells as actions: `order[rank][slot]`, `null` is a bubble. Made when first read, then kept; frozen. */
  declare readonly order: ScheduleOrder;
  readonly #spaced: (() => readonly Int32Array[]) | undefined;

  /** `spaced` makes the rows with bubbles where those of `columns` have none. */
  constructor(columns: ScheduleColumns, spaced?: () => readonly Int32Array[]) {
    if (!Array.isArray(columns?.rows) || !Array.isArray(columns.stageToRank) || !(columns.layout instanceof Layout))
      throw new ScheduleError(
        'BAD_SCHEDULE',
        `Schedule: expected packed columns, got ${show(columns)}; Schedule.from({ order: [['0F0', '0B0']] }) takes actions`,
      );
    this.name = columns.name;
    this.ranks = columns.ranks;
    this.stages = columns.stages;
    this.microbatches = columns.microbatches;
    this.stageToRank = Object.isFrozen(columns.stageToRank)
      ? columns.stageToRank
      : Object.freeze([...columns.stageToRank]);
    this.edges = columns.edges;
    this.layout = columns.layout;
    this.composites = columns.composites;
    this.denseRows = Object.isFrozen(columns.rows) ? columns.rows : Object.freeze([...columns.rows]);
    this.#spaced = spaced;
    let rows = spaced === undefined ? this.denseRows : undefined;
    Object.defineProperty(
      this,
      'rows',
      spaced === undefined
        ? { enumerable: true, value: rows }
        : { enumerable: true, get: () => (rows ??= Object.freeze([...spaced()])) },
    );
    Object.defineProperty(this, 'order', { enumerable: true, value: lazyOrder(this) });
    Object.freeze(this);
  }

  /**
   * A schedule from data written by hand (actions or their texts); a schedule is returned as it is.
   * @example Schedule.from({ order: [['0F0', null, '0B0']] }).microbatches // 1
   */
  static from(data: Schedule | ScheduleData): Schedule {
    if (data instanceof Schedule) return data;
    if (typeof data !== 'object' || data === null || !Array.isArray(data.order)) {
      throw new ScheduleError(
        'BAD_SCHEDULE',
        `Schedule.from: expected { order: [[…], …] } with one row per rank, got ${show(data)}`,
      );
    }
    checkOptions('Schedule.from', data, dataFields);
    const { stageToRank } = data;
    if (
      stageToRank !== undefined &&
      !(Array.isArray(stageToRank) && stageToRank.every((rank) => Number.isInteger(rank)))
    ) {
      throw new ScheduleError(
        'BAD_SCHEDULE',
        `Schedule.from: stageToRank must list the rank of each stage, got ${show(stageToRank)}; write [0, 1, …]`,
      );
    }
    const ranks = data.ranks ?? data.order.length;
    checkCount('Schedule.from', 'ranks', ranks, 0);
    if (data.order.length > ranks) {
      throw new ScheduleError(
        'BAD_SCHEDULE',
        `Schedule.from: order has ${data.order.length} rows for ${ranks} ranks; give one row per rank`,
      );
    }
    const builder = new ColumnBuilder({
      name: data.name ?? 'custom',
      ranks,
      ...(data.stages === undefined ? {} : { stages: checkCount('Schedule.from', 'stages', data.stages, 0) }),
      ...(data.microbatches === undefined
        ? {}
        : { microbatches: checkCount('Schedule.from', 'microbatches', data.microbatches, 0) }),
      ...(data.stageToRank === undefined ? {} : { stageToRank: data.stageToRank }),
      ...(data.edges === undefined ? {} : { edges: data.edges }),
    });
    for (let rank = 0; rank < data.order.length; rank++) {
      const row: unknown = data.order[rank];
      if (!Array.isArray(row))
        throw new ScheduleError(
          'BAD_SCHEDULE',
          `Schedule.from: order[${rank}] must be an array of cells, got ${show(row)}`,
        );
      for (const cell of row) builder.pushCell(rank, cell as Cell);
    }
    const schedule = new Schedule(builder.columns());
    if (schedule.edges !== null) checkEdges(schedule.edges, schedule.stages);
    return schedule;
  }

  /**
   * Reads what `JSON.stringify(schedule)` wrote (text or the parsed object).
   * @example Schedule.fromJSON(JSON.stringify(schedule)).equals(schedule) // true
   */
  static fromJSON(json: string | ScheduleJson | ScheduleData): Schedule {
    let data: unknown = json;
    if (typeof json === 'string') {
      try {
        data = JSON.parse(json);
      } catch (cause) {
        throw new ScheduleError(
          'BAD_JSON',
          `Schedule.fromJSON: not JSON (${(cause as Error).message}); pass what JSON.stringify(schedule) wrote`,
        );
      }
    }
    const { format, version } = (data ?? {}) as Partial<ScheduleJson>;
    if (format !== undefined && format !== 'pipewright-schedule') {
      throw new ScheduleError(
        'BAD_JSON',
        `Schedule.fromJSON: format is ${show(format)}, expected 'pipewright-schedule'`,
      );
    }
    if (version !== undefined && version !== 1) {
      throw new ScheduleError(
        'BAD_JSON',
        `Schedule.fromJSON: version ${show(version)} is not known here (1); update @pipewright/schedule`,
      );
    }
    return Schedule.from(data as ScheduleData);
  }

  /** Number of cells, bubbles included. */
  get size(): number {
    return this.rows.reduce((sum, row) => sum + row.length, 0);
  }

  /** Stages per rank; a fraction where ranks hold different numbers of them. */
  get stagesPerRank(): number {
    return this.ranks === 0 ? 0 : this.stages / this.ranks;
  }

  /**
   * The stages of a rank, ascending.
   * @example buildSchedule('ZBVZeroBubble', { ranks: 2, microbatches: 4 }).stagesOf(0) // [0, 3]
   */
  stagesOf(rank: number): number[] {
    if (checkCount('Schedule.stagesOf', 'rank', rank, 0) >= this.ranks) {
      throw new ScheduleError(
        'BAD_OPTION',
        `Schedule.stagesOf: rank is ${rank}, but the schedule is for ${this.ranks} ranks; ranks count from 0`,
        { rank, ranks: this.ranks },
      );
    }
    return this.stageToRank.flatMap((holder, stage) => (holder === rank ? [stage] : []));
  }

  /** The stage graph as edges, the default chain written out. */
  get stageEdges(): readonly StageEdge[] {
    return this.edges ?? Array.from({ length: Math.max(0, this.stages - 1) }, (_, s): StageEdge => [s, s + 1]);
  }

  /** Whether all cells are compute or bubbles, that is, whether `lower` can take it. */
  get isComputeOnly(): boolean {
    for (const row of this.denseRows) {
      for (let slot = 0; slot < row.length; slot++) {
        const code = wordCode(row[slot]!);
        if (code > Code.B && code !== Code.Composite) return false;
      }
    }
    return true;
  }

  /** The action in a cell; null for a bubble or past the end of the row. */
  at(rank: number, slot: number): Action | null {
    const row = this.rows[checkCount('Schedule.at', 'rank', rank, 0)];
    return unpack(row?.[checkCount('Schedule.at', 'slot', slot, 0)] ?? 0, this.layout, this.composites);
  }

  /** The text of a word of this schedule. */
  format(word: number): string {
    return formatAction(unpack(checkCount('Schedule.format', 'word', word, -(2 ** 31)), this.layout, this.composites));
  }

  /** Visits every plain action and every part of a composite, rank by rank, slot by slot; bubbles are skipped. */
  forEachLeaf(visit: (leaf: Leaf) => void): void {
    checkFunction('Schedule.forEachLeaf', 'visit', visit);
    const { rows, layout, composites } = this;
    for (let rank = 0; rank < rows.length; rank++) {
      const row = rows[rank]!;
      for (let slot = 0; slot < row.length; slot++) {
        const leaves = composites.leavesOf(row[slot]!);
        for (let part = 0; part < leaves.length; part++) {
          const word = leaves[part]!;
          visit({
            rank,
            slot,
            code: wordCode(word),
            stage: layout.stage(word),
            microbatch: layout.microbatch(word),
            word,
            part,
          });
        }
      }
    }
  }

  /** A copy with other fields; the rows must fit the layout that is kept. */
  with(changes: Partial<ScheduleColumns>): Schedule {
    checkOptions('Schedule.with', changes, columnNames);
    const columns = {
      name: this.name,
      ranks: this.ranks,
      stages: this.stages,
      microbatches: this.microbatches,
      stageToRank: this.stageToRank,
      edges: this.edges,
      layout: this.layout,
      composites: this.composites,
      rows: this.denseRows,
      ...changes,
    };
    return new Schedule(
      columns,
      changes.rows === undefined && this.#spaced !== undefined ? () => this.rows : undefined,
    );
  }

  /**
   * Whether two schedules are the same data; the name is a label and does not count.
   * @example buildSchedule('GPipe', o).equals(buildSchedule('gpipe', o)) // true
   */
  equals(other: Schedule | ScheduleData): boolean {
    return this.diff(other, 1).length === 0;
  }

  /**
   * Where two schedules differ, at most `limit` places.
   * @example a.diff(b).map((d) => `rank ${d.rank} slot ${d.slot}: ${d.left} != ${d.right}`)
   */
  diff(other: Schedule | ScheduleData, limit: number = 100): ScheduleDifference[] {
    const that = Schedule.from(other);
    const found: ScheduleDifference[] = [];
    for (const what of ['ranks', 'stages', 'microbatches', 'stageToRank', 'edges'] as const) {
      const left = what === 'edges' ? JSON.stringify(this.stageEdges) : String(this[what]);
      const right = what === 'edges' ? JSON.stringify(that.stageEdges) : String(that[what]);
      if (left !== right) found.push({ what, rank: null, slot: null, left, right });
    }
    const rows = Math.max(this.rows.length, that.rows.length);
    for (let rank = 0; rank < rows && found.length < limit; rank++) this.diffRow(that, rank, { found, limit });
    return found.slice(0, limit);
  }

  private diffRow(
    that: Schedule,
    rank: number,
    into: { readonly found: ScheduleDifference[]; readonly limit: number },
  ): void {
    const a = this.rows[rank] ?? new Int32Array(0);
    const b = that.rows[rank] ?? new Int32Array(0);
    const plainComparable = this.layout === that.layout;
    for (let slot = 0; slot < Math.max(a.length, b.length) && into.found.length < into.limit; slot++) {
      const inBoth = slot < a.length && slot < b.length;
      if (inBoth && plainComparable && a[slot] === b[slot] && !isComposite(a[slot]!)) continue;
      const left = this.at(rank, slot);
      const right = that.at(rank, slot);
      if (inBoth && actionsEqual(left, right)) continue;
      into.found.push({
        what: 'cell',
        rank,
        slot,
        left: slot < a.length ? formatAction(left) : null,
        right: slot < b.length ? formatAction(right) : null,
      });
    }
  }

  /** Plain data for `JSON.stringify`; actions as text, bubbles as null. */
  toJSON(): ScheduleJson {
    return {
      format: 'pipewright-schedule',
      version: 1,
      name: this.name,
      ranks: this.ranks,
      stages: this.stages,
      microbatches: this.microbatches,
      stageToRank: this.stageToRank,
      ...(this.edges === null ? {} : { edges: this.edges }),
      order: this.rows.map((row) => Array.from(row, (word) => (word === 0 ? null : this.format(word)))),
    };
  }

  /** One line per rank, actions separated by spaces, `.` for a bubble. */
  toString(): string {
    return this.rows
      .map((row) => Array.from(row, (word) => (word === 0 ? '.' : this.format(word))).join(' '))
      .join('\n');
  }
}

/** An array of rows whose elements are decoded when first read. */
function lazyOrder(columns: Schedule): ScheduleOrder {
  const { denseRows, layout, composites } = columns;
  const cache: (readonly (Action | null)[])[] = [];
  const order: (readonly (Action | null)[])[] = [];
  order.length = denseRows.length;
  for (let rank = 0; rank < denseRows.length; rank++) {
    Object.defineProperty(order, rank, {
      enumerable: true,
      get: () =>
        (cache[rank] ??= Object.freeze(Array.from(columns.rows[rank]!, (word) => unpack(word, layout, composites)))),
    });
  }
  return Object.freeze(order);
}
