/** @file Packs cells into columns, one after the other. */

import { type Action, type ActionKind, actionKinds, parseAction } from './action.ts';
import { ScheduleError, show } from './errors.ts';
import { Code, CompositeTable, codeOf, Layout } from './packed.ts';
import type { Cell, ScheduleColumns, StageEdge } from './schedule.ts';

/** What is known before the first cell; what is left out is read off the cells. */
export interface ScheduleHead {
  readonly name: string;
  readonly ranks: number;
  readonly stages?: number;
  readonly microbatches?: number;
  readonly stageToRank?: readonly number[];
  /** Default: each stage feeds the next. */
  readonly edges?: readonly StageEdge[] | null;
  /** Cells to make room for in each row; rows grow when needed. */
  readonly capacity?: number;
}

/**
 * A growing row of words. `push` is the fast path: words come from `builder.layout.pack`.
 * @example const row = builder.row(0); row.push(builder.layout.pack(Code.F, 0, 0)); row.bubbles(2)
 */
export class RowBuilder {
  words: Int32Array;
  length = 0;

  constructor(capacity: number) {
    this.words = new Int32Array(capacity);
  }

  /** Appends a word; 0 is a bubble. */
  push(word: number): void {
    if (this.length === this.words.length) this.reserve(this.length + 1);
    this.words[this.length++] = word;
  }

  /** Appends bubbles. */
  bubbles(count: number): void {
    if (count <= 0) return;
    this.reserve(this.length + count);
    this.words.fill(0, this.length, this.length + count);
    this.length += count;
  }

  /** Makes room for that many words in all. */
  reserve(total: number): void {
    if (total <= this.words.length) return;
    const grown = new Int32Array(Math.max(total, 16, Math.ceil(this.words.length * 1.5)));
    grown.set(this.words.subarray(0, this.length));
    this.words = grown;
  }

  /** The words, without spare room. */
  finish(): Int32Array {
    return this.length === this.words.length ? this.words : this.words.slice(0, this.length);
  }
}

/** The columns under construction; `ScheduleBuilder` makes a schedule of them. */
export class ColumnBuilder {
  /** The layout of the words pushed so far; it changes only when `push` or `pushCell` meets a larger number. */
  layout: Layout;
  readonly composites: CompositeTable = new CompositeTable();
  private readonly head: ScheduleHead;
  private readonly rowBuilders: RowBuilder[];
  private maxStage = -1;
  private maxMicrobatch = -1;

  constructor(head: ScheduleHead) {
    this.head = head;
    this.layout = Layout.for(head.stages ?? 1, head.microbatches ?? 1);
    this.rowBuilders = Array.from({ length: head.ranks }, () => new RowBuilder(head.capacity ?? 16));
  }

  /** The growing row of a rank. */
  row(rank: number): RowBuilder {
    return this.rowBuilders[rank]!;
  }

  /** Appends a plain action by numbers; microbatch -1 is none. */
  push(rank: number, code: number, stage: number, microbatch: number): void {
    this.rowBuilders[rank]!.push(this.word(code, stage, microbatch));
  }

  /** Appends bubbles. */
  bubble(rank: number, count: number = 1): void {
    this.rowBuilders[rank]!.bubbles(count);
  }

  /** Appends an overlapped composite of words made by `word`. */
  overlap(rank: number, parts: readonly number[]): void {
    this.rowBuilders[rank]!.push(this.composites.add(parts));
  }

  /** A checked word. Words made before a larger number was met stay valid only in the rows. */
  word(code: number, stage: number, microbatch: number): number {
    if (stage > this.maxStage || microbatch > this.maxMicrobatch) this.widen(stage, microbatch);
    return this.layout.pack(code, stage, microbatch);
  }

  /** Appends a cell given as an action, its text or null. */
  pushCell(rank: number, cell: Cell): void {
    const item = typeof cell === 'string' ? parseAction(cell) : cell;
    if (item === null) {
      this.bubble(rank);
      return;
    }
    if (typeof (item as unknown) !== 'object')
      throw new ScheduleError(
        'BAD_ACTION',
        `order[${rank}]: a cell is a ${typeof item}; give an action, its text or null`,
      );
    this.noteRange(item, `order[${rank}][${this.rowBuilders[rank]!.length}]`);
    this.rowBuilders[rank]!.push(this.wordOf(item));
  }

  /** The columns; the builder must not be used afterwards. */
  columns(): ScheduleColumns {
    const { head } = this;
    const rows = this.rowBuilders.map((row) => row.finish());
    const seen = head.stages === undefined || head.microbatches === undefined || head.stageToRank === undefined;
    const observed = seen ? observe(rows, this.layout, this.composites) : null;
    const stages = head.stages ?? Math.max(observed!.stages, head.stageToRank?.length ?? 0);
    return {
      name: head.name,
      ranks: head.ranks,
      stages,
      microbatches: head.microbatches ?? observed!.microbatches,
      stageToRank: head.stageToRank ?? Array.from({ length: stages }, (_, s) => observed!.stageToRank[s] ?? -1),
      edges: head.edges ?? null,
      layout: this.layout,
      composites: this.composites,
      rows,
    };
  }

  /** Checks an action written by hand and widens the layout for it and its parts. */
  private noteRange(item: Action, where: string): void {
    const parts = item.parts ?? null;
    if (typeof item !== 'object' || !actionKinds.includes(item.kind as ActionKind)) {
      throw new ScheduleError(
        'BAD_ACTION',
        `Schedule: ${where} is ${show((item as { kind?: unknown })?.kind ?? item)}, not an action; write { kind, stage, microbatch, parts } or text such as '2F0'`,
      );
    }
    if (parts !== null || item.stage === -1) {
      for (const part of parts ?? []) this.noteRange(part, where);
      return;
    }
    const microbatch = item.microbatch ?? -1;
    if (!Number.isSafeInteger(item.stage) || item.stage < 0 || !Number.isSafeInteger(microbatch) || microbatch < -1) {
      throw new ScheduleError(
        'BAD_ACTION',
        `Schedule: ${where} has stage ${show(item.stage)} and microbatch ${show(item.microbatch)}; both must be integers of at least 0`,
      );
    }
    this.word(Code.F, item.stage, microbatch);
  }

  private wordOf(item: Action): number {
    const parts = item.parts ?? null;
    if (parts !== null || item.stage === -1) {
      return this.composites.add(
        (parts ?? []).map((part) => this.wordOf(part)),
        codeOf(item.kind),
      );
    }
    return this.layout.pack(codeOf(item.kind), item.stage, item.microbatch ?? -1);
  }

  /** Notes a larger number; repacks what was pushed if the layout must change. */
  private widen(stage: number, microbatch: number): void {
    this.maxStage = Math.max(this.maxStage, stage);
    this.maxMicrobatch = Math.max(this.maxMicrobatch, microbatch);
    if (this.layout.holds(this.maxStage, this.maxMicrobatch)) return;
    const from = this.layout;
    const to = Layout.holding(
      Math.max(this.maxStage, (this.head.stages ?? 1) - 1),
      Math.max(this.maxMicrobatch, (this.head.microbatches ?? 1) - 1),
    );
    for (const row of this.rowBuilders) {
      for (let i = 0; i < row.length; i++) row.words[i] = from.translate(row.words[i]!, to);
    }
    this.composites.translate(from, to);
    this.layout = to;
  }
}

/** Stages, microbatches and placement as the cells show them. */
function observe(
  rows: readonly Int32Array[],
  layout: Layout,
  composites: CompositeTable,
): { stages: number; microbatches: number; stageToRank: number[] } {
  const stageToRank: number[] = [];
  let stages = 0;
  let microbatches = 0;
  rows.forEach((row, rank) => {
    for (const word of row) {
      for (const leaf of composites.leavesOf(word)) {
        const stage = layout.stage(leaf);
        stages = Math.max(stages, stage + 1);
        microbatches = Math.max(microbatches, layout.microbatch(leaf) + 1);
        stageToRank[stage] ??= rank;
      }
    }
  });
  return { stages, microbatches, stageToRank };
}
