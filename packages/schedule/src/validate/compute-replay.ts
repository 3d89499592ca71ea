/** @file Runs a compute order as far as results of other ranks allow, one slot per action. */

import type { Extent } from '../model/extent.ts';
import { bits, isComposite, samePair } from '../model/packed.ts';
import type { Schedule } from '../model/schedule.ts';
import { StageGraph } from '../model/stage-graph.ts';
import type { CycleStep } from './violation.ts';
import { waitingCycle } from './waiting-cycle.ts';

// Constants of this module: an import is looked up at every use.
const { Code, fieldIn, movedIn, stageIn, withCode, wordCode } = bits;

/** What a replay keeps. */
export interface ComputeReplayOptions {
  /** Whether to write the rows with bubbles where ranks wait. */
  readonly space: boolean;
  /** What occurs. */
  readonly extent: Extent;
}

/**
 * The replay: each rank runs until it needs a result that is not there; a result wakes the rank that waits for it, so
 * every cell is handled once. Results are known by their F word, or by a B word for the gradient that I or B makes.
 */
export class ComputeReplay {
  /** Per rank the first slot that was not run. */
  readonly cursor: Int32Array;
  private readonly schedule: Schedule;
  private readonly graph: StageGraph;
  private readonly width: number;
  /** Slot after which (stage, microbatch) has its output (its input gradient); 0: not yet. */
  private readonly forwardEnd: Int32Array;
  private readonly gradientEnd: Int32Array;
  private readonly clock: Int32Array;
  /** The result a rank waits for; 0: none. */
  private readonly waits: Int32Array;
  private readonly stack: Int32Array;
  private stacked = 0;
  private readonly spaced: Int32Array[] | null;
  // The parts of the composite at hand, and how many of them come before the one that is looked at.
  private inside: readonly number[] = [];
  private insideCount = 0;

  constructor(schedule: Schedule, options: ComputeReplayOptions) {
    const { rows, ranks } = schedule;
    const { stages, fields } = options.extent;
    this.schedule = schedule;
    this.graph = new StageGraph({ stages, stageToRank: schedule.stageToRank, edges: schedule.edges });
    this.width = fields;
    this.forwardEnd = new Int32Array(stages * fields);
    this.gradientEnd = new Int32Array(stages * fields);
    this.cursor = new Int32Array(ranks);
    this.clock = new Int32Array(ranks);
    this.waits = new Int32Array(ranks);
    this.stack = new Int32Array(ranks);
    this.spaced = options.space ? rows.map((row) => new Int32Array(row.length + 64)) : null;
  }

  run(): void {
    for (let rank = this.schedule.ranks - 1; rank >= 0; rank--) this.stack[this.stacked++] = rank;
    this.runReady();
  }

  /** The rows with bubbles. */
  spacedRows(): Int32Array[] {
    return this.spaced!.map((row, rank) => row.slice(0, this.clock[rank]));
  }

  /** Who waits for whom when some rank did not reach its end; null if all did. */
  cycle(): readonly CycleStep[] | null {
    const { rows, stageToRank, layout } = this.schedule;
    return waitingCycle(this.schedule, this.cursor, (rank) => {
      const needed = this.waits[rank]!;
      const next = stageToRank[layout.stage(needed)] ?? -1;
      const slot = this.find(next, needed);
      const action = this.schedule.format(slot === null ? needed : rows[next]![slot]!);
      return { waitsFor: { rank: next, slot, action }, isMissing: slot === null };
    });
  }

  /** Slot of the action that makes a result. */
  private find(rank: number, needed: number): number | null {
    const row = this.schedule.rows[rank] ?? [];
    for (let slot = 0; slot < row.length; slot++) {
      for (const leaf of this.schedule.composites.leavesOf(row[slot]!)) {
        if (!samePair(leaf, needed)) continue;
        const code = wordCode(leaf);
        if (wordCode(needed) === Code.F ? code === Code.F : code === Code.I || code === Code.B) return slot;
      }
    }
    return null;
  }

  /** Runs all ranks that can go on. */
  private runReady(): void {
    const { forwardEnd, gradientEnd, width, waits, graph, stack, cursor, clock } = this;
    const { rows, layout } = this.schedule;
    const { stageShift, microbatchMask } = layout;
    const { rankOf, stages } = graph;
    const chain = graph.isChain;
    while (this.stacked > 0) {
      const rank = stack[--this.stacked]!;
      const row = rows[rank]!;
      let spaced = this.spaced === null ? null : this.spaced[rank]!;
      let slot = cursor[rank]!;
      let now = clock[rank]!;
      for (; slot < row.length; slot++) {
        const word = row[slot]!;
        if (word === 0) continue;
        const code = wordCode(word);
        let start = now;
        if (!chain || code > Code.B || code === Code.W) {
          start = this.startOf(word, now);
          if (start < 0) break;
          this.finish(word, start + 1);
        } else {
          // A plain action in a chain: it needs one neighbour's result and may be what the other neighbour waits for.
          const stage = stageIn(word, stageShift);
          const key = stage * width + fieldIn(word, microbatchMask);
          const needed = code === Code.F ? (stage === 0 ? -1 : key - width) : stage === stages - 1 ? -1 : key + width;
          if (code !== Code.F && forwardEnd[key] === 0) {
            waits[rank] = withCode(word, Code.F);
            break;
          }
          if (needed >= 0) {
            const end = (code === Code.F ? forwardEnd : gradientEnd)[needed]!;
            if (end === 0) {
              waits[rank] =
                code === Code.F ? movedIn(word, -1, stageShift) : movedIn(withCode(word, Code.B), 1, stageShift);
              break;
            }
            if (end > start) start = end;
          }
          let waiting = -1;
          let made = word;
          if (code === Code.F) {
            forwardEnd[key] = start + 1;
            if (stage < stages - 1) waiting = rankOf[stage + 1]!;
          } else {
            gradientEnd[key] = start + 1;
            made = withCode(word, Code.B);
            if (stage > 0) waiting = rankOf[stage - 1]!;
          }
          if (waiting >= 0 && waits[waiting] === made) {
            waits[waiting] = 0;
            stack[this.stacked++] = waiting;
          }
        }
        if (spaced !== null) {
          if (start >= spaced.length) {
            const grown = new Int32Array(Math.ceil(start * 1.25) + 64);
            grown.set(spaced);
            this.spaced![rank] = spaced = grown;
          }
          spaced[start] = word;
        }
        now = start + 1;
      }
      cursor[rank] = slot;
      clock[rank] = now;
    }
  }

  /** Earliest slot of any action at or after `now`; -1, with `waits` set, if a result is missing. */
  private startOf(word: number, now: number): number {
    if (!isComposite(word)) return this.leafStart(word, now);
    const leaves = this.schedule.composites.leavesOf(word);
    let start = now;
    this.inside = leaves;
    for (this.insideCount = 0; start >= 0 && this.insideCount < leaves.length; this.insideCount++)
      start = this.leafStart(leaves[this.insideCount]!, start);
    this.insideCount = 0;
    return start;
  }

  private leafStart(word: number, now: number): number {
    const { layout } = this.schedule;
    const { graph, width } = this;
    const code = wordCode(word);
    const stage = layout.stage(word);
    const microbatch = layout.microbatch(word);
    const rank = graph.rankOf[stage]!;
    let start = now;
    const need = (ends: Int32Array, from: number, result: number): boolean => {
      const end = ends[from * width + microbatch + 1]!;
      if (end > start) start = end;
      if (end === 0 && this.isInside(layout.pack(result, from, microbatch))) return true;
      if (end === 0 && rank >= 0) this.waits[rank] = layout.pack(result, from, microbatch);
      return end !== 0;
    };
    if (code === Code.F) {
      for (let e = graph.inputStart[stage]!; e < graph.inputStart[stage + 1]!; e++)
        if (!need(this.forwardEnd, graph.inputs[e]!, Code.F)) return -1;
    } else if (code === Code.I || code === Code.B) {
      if (!need(this.forwardEnd, stage, Code.F)) return -1;
      for (let e = graph.outputStart[stage]!; e < graph.outputStart[stage + 1]!; e++)
        if (!need(this.gradientEnd, graph.outputs[e]!, Code.B)) return -1;
    } else if (code === Code.W && !need(this.gradientEnd, stage, Code.B)) return -1;
    return start;
  }

  /** Whether an earlier part of the composite at hand makes a result. */
  private isInside(result: number): boolean {
    for (let i = 0; i < this.insideCount; i++) {
      const leaf = this.inside[i]!;
      if (!samePair(leaf, result)) continue;
      const code = wordCode(leaf);
      if (wordCode(result) === Code.F ? code === Code.F : code === Code.I || code === Code.B) return true;
    }
    return false;
  }

  /** Records the results of any action and wakes the ranks that wait for them. */
  private finish(word: number, end: number): void {
    const { layout, composites } = this.schedule;
    const { graph } = this;
    for (const leaf of composites.leavesOf(word)) {
      const code = wordCode(leaf);
      const stage = layout.stage(leaf);
      const microbatch = layout.microbatch(leaf);
      const key = stage * this.width + microbatch + 1;
      if (code === Code.F) {
        this.forwardEnd[key] = end;
        for (let e = graph.outputStart[stage]!; e < graph.outputStart[stage + 1]!; e++)
          this.wake(graph.outputs[e]!, leaf);
      } else if (code === Code.I || code === Code.B) {
        this.gradientEnd[key] = end;
        for (let e = graph.inputStart[stage]!; e < graph.inputStart[stage + 1]!; e++)
          this.wake(graph.inputs[e]!, layout.pack(Code.B, stage, microbatch));
      }
    }
  }

  private wake(stage: number, result: number): void {
    const rank = this.graph.rankOf[stage]!;
    if (rank < 0 || this.waits[rank] !== result) return;
    this.waits[rank] = 0;
    this.stack[this.stacked++] = rank;
  }
}
