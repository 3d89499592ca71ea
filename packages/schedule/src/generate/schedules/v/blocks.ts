/** @file All building blocks of the V family: how a microbatch may run down and up the ranks so that blocks repeat without collision. */

import type { BuildingBlock } from './grid.ts';
import { period } from './row.ts';

/** A building block and the chunks its fullest rank holds when repeated. */
export interface MeasuredBlock {
  readonly block: BuildingBlock;
  readonly peak: number;
}

/** Slots modulo the period of DownF, UpF, UpI and DownI on one rank. */
type Residues = readonly [number, number, number, number];

/**
 * Every block in which the downward passes (DownF, UpI) step from rank to rank by one distance, then from some rank on by
 * a shorter one, and the upward passes by one slot; rank 0 starts with any four different slots.
 */
export function buildingBlocks(ranks: number): readonly MeasuredBlock[] {
  let blocks = known.get(ranks);
  if (blocks === undefined) {
    if (known.size >= 8) known.clear();
    known.set(ranks, (blocks = findBlocks(ranks)));
  }
  return blocks;
}

/** Blocks depend on the number of ranks alone; those of the last few numbers are kept. */
const known = new Map<number, readonly MeasuredBlock[]>();

function findBlocks(ranks: number): MeasuredBlock[] {
  const found = new Map<string, BuildingBlock>();
  for (const start of startResidues()) {
    for (const steps of stepSequences(ranks)) {
      const residues = residuesOf(start, steps);
      if (residues === null) continue;
      const key = residues.join();
      if (!found.has(key)) found.set(key, fromResidues(residues));
    }
  }
  const peaks = new Map<number, number>();
  return [...found.values()].map((block) => ({ block, peak: steadyPeak(block, peaks) }));
}

function startResidues(): Residues[] {
  const found: Residues[] = [];
  for (let a = 1; a < period; a++) {
    for (let b = 1; b < period; b++) {
      for (let c = 1; c < period; c++) if (a !== b && a !== c && b !== c) found.push([0, a, b, c]);
    }
  }
  return found;
}

/** Distances between neighbouring ranks: `long` until the turn, `short` after it. */
function stepSequences(ranks: number): number[][] {
  const found: number[][] = [];
  for (let long = 1; long < period; long++) {
    for (let short = 1; short <= long; short++) {
      const turns = short === long ? [ranks - 1] : Array.from({ length: Math.max(0, ranks - 2) }, (_, i) => i + 1);
      for (const turn of turns) found.push(Array.from({ length: ranks - 1 }, (_, r) => (r < turn ? long : short)));
    }
  }
  return found;
}

/** The slots of every rank; null where two passes of a rank collide. */
function residuesOf(start: Residues, steps: readonly number[]): Residues[] | null {
  const rows: Residues[] = [start];
  for (const step of steps) {
    const [a, b, c, d] = rows[rows.length - 1]!;
    const next: Residues = [
      (a + step) % period,
      (b + period - 1) % period,
      (c + step) % period,
      (d + period - 1) % period,
    ];
    const [p, q, r, s] = next;
    if (p === q || p === r || p === s || q === r || q === s || r === s) return null;
    rows.push(next);
  }
  return rows;
}

/** The block in which each pass of a microbatch takes the first slot of its residue after the pass before. */
function fromResidues(residues: readonly Residues[]): BuildingBlock {
  const block = residues.map((): [number, number, number, number] => [0, 0, 0, 0]);
  let slot = -1;
  for (let pass = 0; pass < 4; pass++) {
    for (let i = 0; i < residues.length; i++) {
      const rank = pass % 2 === 0 ? i : residues.length - 1 - i;
      slot++;
      slot += (residues[rank]![pass]! - (slot % period) + period) % period;
      block[rank]![pass] = slot;
    }
  }
  return block;
}

/** Most chunks that a rank holds when the block is repeated; rows that differ by a shift hold the same, and are kept in `peaks`. */
function steadyPeak(block: BuildingBlock, peaks: Map<number, number>): number {
  const microbatches = 2 * block.length + 2;
  const base = 2 * period * (microbatches + block.length);
  let most = 0;
  for (const [a, b, c, d] of block) {
    const key = ((b - a) * base + (c - a)) * base + (d - a);
    let peak = peaks.get(key);
    if (peak === undefined) peaks.set(key, (peak = repeatedPeak([a, b, c, d], microbatches)));
    if (peak > most) most = peak;
  }
  return most;
}

/** What the stages of a rank on the way down and on the way up take at F, and give back at I; the rest goes at W. */
export interface ChunkSizes {
  readonly takes: readonly [number, number];
  readonly gives: readonly [number, number];
}

const alike: ChunkSizes = { takes: [1, 1], gives: [0, 0] };

/** The most held, from F until W, in a row that repeats four cells; weight work is done in its empty slots, the way up's first. */
export function repeatedPeak(
  starts: readonly [number, number, number, number],
  microbatches: number,
  { takes, gives }: ChunkSizes = alike,
): number {
  const [a, b, , d] = starts;
  const kinds = new Int8Array(period).fill(-1);
  starts.forEach((start, kind) => {
    kinds[start % period] = kind;
  });
  // From the first DownI on, a few periods show all: as much weight work is done as there is to do.
  const end = Math.min(b + period * (microbatches - 1), d + 4 * period);
  let held = 0;
  let [pendingDown, pendingUp] = [0, 0];
  let peak = 0;
  for (let slot = a; slot <= end; slot++) {
    const kind = kinds[slot % period]!;
    const start = kind < 0 ? -1 : starts[kind]!;
    if (kind < 0 || slot < start || slot >= start + period * microbatches) {
      if (pendingUp > 0) {
        pendingUp--;
        held -= takes[1] - gives[1];
      } else if (pendingDown > 0) {
        pendingDown--;
        held -= takes[0] - gives[0];
      }
    } else if (kind < 2) {
      held += takes[kind as 0 | 1];
      if (held > peak) peak = held;
    } else if (kind === 2) {
      pendingUp++;
      held -= gives[1];
    } else {
      pendingDown++;
      held -= gives[0];
    }
  }
  return peak;
}
