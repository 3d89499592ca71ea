/** @file All building blocks of the V family: how a microbatch may run down and up the ranks so that blocks repeat without collision. */

import { type BuildingBlock, VGrid } from './grid.ts';
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
  return [...found.values()].map((block) => ({ block, peak: steadyPeak(block) }));
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
    if (new Set(next).size < 4) return null;
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

function steadyPeak(block: BuildingBlock): number {
  const grid = VGrid.repeat(block, 2 * block.length + 2);
  grid.addWeights();
  return grid.peak;
}
