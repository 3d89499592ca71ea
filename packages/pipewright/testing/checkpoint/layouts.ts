/** @file Saves at one layout and loads at others, and compares: shared by a test, which takes a few pairs, and a script, which takes all. */
import { join } from 'node:path';
import { casesOnProcesses, casesOnThreads, startProcesses } from '../launch.ts';

/** How a run is laid out. */
export interface Layout {
  readonly pp: number;
  readonly dp: number;
  readonly schedule: string;
  readonly sharded?: boolean;
  /** Default AdamW. */
  readonly optimizer?: 'Adafactor';
}

/** What a rank has seen. */
export interface RankResult {
  readonly values: Record<string, (number | null)[]>;
  readonly rest: string;
  readonly bytes: number;
  readonly losses: number[][];
  readonly after: Record<string, (number | null)[]>;
  readonly end: string;
}

const program = new URL('../ranks/checkpoint.mjs', import.meta.url);

/** A layout in words. */
export function nameOf({ pp, dp, schedule, sharded, optimizer }: Layout): string {
  return `${schedule}-${pp}x${dp}${sharded === true ? '-sharded' : ''}${optimizer === undefined ? '' : `-${optimizer}`}`;
}

/** What ranks are. */
export type Ranks = 'threads' | 'processes';

function run(layout: Layout, cases: readonly object[], ranks: Ranks): Promise<RankResult[][]> {
  const count = layout.pp * layout.dp;
  return ranks === 'threads' ? casesOnThreads(program, count, cases) : casesOnProcesses(program, count, cases);
}

/** Trains and saves twice, the second time with a rank that is killed at a call of its writing thread; how each rank ended. */
export async function saveUntilKilled(
  layout: Layout,
  folder: string,
  { rank: dying, dieAt }: { readonly rank: number; readonly dieAt: number },
): Promise<string[]> {
  const cases = [{ kind: 'die', layout, folder, dying }];
  const started = await startProcesses(program, layout.pp * layout.dp, cases, (rank) =>
    rank === dying ? { DIE_AT: String(dieAt), DIE_AFTER: 'step-00000003' } : {},
  );
  return Promise.all(
    started.map((result) =>
      result.then(
        () => 'saved',
        (error: Error) => /ended with (\w+)/.exec(error.message)?.[1] ?? error.message,
      ),
    ),
  );
}

/** Trains three steps at a layout, saves, and goes on for three. */
export async function save(layout: Layout, folder: string, ranks: Ranks = 'threads'): Promise<RankResult[]> {
  const path = join(folder, nameOf(layout));
  const results = await run(layout, [{ kind: 'save', layout, folder: path, steps: 3, more: 3 }], ranks);
  return results.map(([result]) => result as RankResult);
}

/** Loads what other layouts have saved, and goes on for some steps; `results[saved][rank]`. */
export async function load(
  layout: Layout,
  saved: readonly Layout[],
  folder: string,
  { ranks = 'threads', more = 3 }: { readonly ranks?: Ranks; readonly more?: number } = {},
): Promise<RankResult[][]> {
  const results = await run(
    layout,
    saved.map((from) => ({ kind: 'load', layout, folder: join(folder, nameOf(from)), more })),
    ranks,
  );
  return saved.map((_, i) => results.map((ofRank) => ofRank[i] as RankResult));
}

/** All values of all ranks by name, shards put together; ranks with the same name must agree. */
function joined(ranks: readonly Record<string, (number | null)[]>[]): Map<string, number[]> {
  const all = new Map<string, (number | null)[]>();
  for (const values of ranks)
    for (const [name, numbers] of Object.entries(values)) {
      const known = all.get(name) ?? numbers.map(() => null);
      all.set(
        name,
        numbers.map((value, i) => {
          const other = known[i] ?? null;
          if (value !== null && other !== null && value !== other) throw new Error(`ranks disagree about ${name}`);
          return value ?? other;
        }),
      );
    }
  for (const [name, numbers] of all) if (numbers.includes(null)) throw new Error(`nobody has all of ${name}`);
  return all as Map<string, number[]>;
}

/** The largest difference of two lists of numbers; infinite where they cannot be compared. */
function differenceOf(a: readonly number[], b: readonly number[]): number {
  if (a.length !== b.length) return Number.POSITIVE_INFINITY;
  let most = 0;
  a.forEach((value, i) => {
    const difference = Math.abs(value - (b[i] as number));
    most = difference <= most ? most : Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference;
  });
  return most;
}

/** What is wrong with a load, in words; empty where all is as it should be. */
export function compare(from: readonly RankResult[], to: readonly RankResult[], isSame: boolean): string[] {
  const problems: string[] = [];
  const look = (what: string, a: Map<string, number[]>, b: Map<string, number[]>, limit: number): void => {
    // What is tied has a name for each stage that holds it.
    for (const [name, numbers] of b) {
      const own = a.get(name) ?? a.get(name.replace(/blocks\.\d+\.shared/, 'blocks.0.shared'));
      const difference = own === undefined ? Number.POSITIVE_INFINITY : differenceOf(own, numbers);
      if (difference > limit) problems.push(`${what}: ${name} differs by ${difference}`);
    }
    for (const name of a.keys())
      if (!b.has(name) && !name.includes('.shared')) problems.push(`${what}: ${name} is missing`);
  };
  look('loaded', joined(from.map(({ values }) => values)), joined(to.map(({ values }) => values)), 0);
  look(
    'three steps later',
    joined(from.map(({ after }) => after)),
    joined(to.map(({ after }) => after)),
    isSame ? 0 : 1e-12,
  );
  for (const { rest, end } of to) {
    if (rest !== from[0]?.rest) problems.push(`the rest is ${rest}, was ${from[0]?.rest}`);
    if (end !== from[0]?.end) problems.push(`the rest ends as ${end}, was ${from[0]?.end}`);
  }
  return problems;
}
