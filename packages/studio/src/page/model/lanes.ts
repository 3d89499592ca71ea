/** @file A picture as lanes: per rank, bars sorted by start with running sums, so that any stretch of time is added up exactly. */
import { computationVisuals, FaceReader, type Picture, toneOf, visualOrder } from '@pipewright/schedule';

/** Bars of one rank that do not overlap, in order of time. */
export interface Track {
  readonly count: number;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** Index into `visualOrder`. */
  readonly kind: Uint8Array;
  /** Which of the rank's stages, for the tone. */
  readonly chunk: Uint8Array;
  readonly slot: Int32Array;
  /** `before[k][i]`: time that bars of the k-th kind of `kinds` take before bar i; one entry more than bars. */
  readonly before: readonly Float64Array[];
  /** The kinds that occur, as indices into `visualOrder`. */
  readonly kinds: Uint8Array;
}

/** One rank. */
export interface Lane {
  readonly rank: number;
  readonly chunks: number;
  /** Compute, and whatever else the rank itself is busy with. */
  readonly main: Track;
  /** Messages and collectives that run beside it; null where there are none that take time. */
  readonly beside: Track | null;
}

/** All lanes of a picture. */
export interface Lanes {
  readonly picture: Picture;
  readonly lanes: readonly Lane[];
  readonly makespan: number;
}

const kindIndex = new Map(visualOrder.map((kind, i) => [kind, i]));

/** Sorts the bars of a picture into lanes. */
export function lanesOf(picture: Picture): Lanes {
  const { bars, schedule } = picture;
  const faces = new FaceReader(schedule);
  const main: number[][] = schedule.rows.map(() => []);
  const beside: number[][] = schedule.rows.map(() => []);
  for (let i = 0; i < bars.count; i++) {
    if ((bars.end[i] as number) <= (bars.start[i] as number)) continue;
    (bars.beside[i] === 1 ? beside : main)[bars.rank[i] as number]?.push(i);
  }
  return {
    picture,
    makespan: picture.makespan,
    lanes: schedule.rows.map((_, rank) => ({
      rank,
      chunks: faces.chunksOfRank[rank] ?? 1,
      main: trackOf(main[rank] as number[], picture, faces),
      beside: (beside[rank] as number[]).length === 0 ? null : trackOf(beside[rank] as number[], picture, faces),
    })),
  };
}

function trackOf(indices: number[], { bars }: Picture, faces: FaceReader): Track {
  indices.sort((a, b) => (bars.start[a] as number) - (bars.start[b] as number));
  const count = indices.length;
  const start = new Float64Array(count);
  const end = new Float64Array(count);
  const kind = new Uint8Array(count);
  const chunk = new Uint8Array(count);
  const slot = new Int32Array(count);
  const present = new Set<number>();
  let free = Number.NEGATIVE_INFINITY;
  indices.forEach((at, i) => {
    // Bars beside compute may overlap each other: what is hidden below an earlier one is not counted twice.
    start[i] = Math.max(bars.start[at] as number, free);
    end[i] = Math.max(start[i] as number, bars.end[at] as number);
    free = end[i] as number;
    const rank = bars.rank[at] as number;
    slot[i] = bars.slot[at] as number;
    kind[i] = kindIndex.get(faces.kind(rank, slot[i] as number)) as number;
    chunk[i] = Math.min(255, faces.chunk(rank, slot[i] as number));
    present.add(kind[i] as number);
  });
  const kinds = Uint8Array.from(present).sort();
  const before = Array.from(kinds, (which) => {
    const sums = new Float64Array(count + 1);
    for (let i = 0; i < count; i++)
      sums[i + 1] = (sums[i] as number) + (kind[i] === which ? (end[i] as number) - (start[i] as number) : 0);
    return sums;
  });
  return { count, start, end, kind, chunk, slot, before, kinds };
}

/** The last bar that starts at or before a time, from a first guess; -1 where there is none. */
export function barAt(track: Track, time: number, from = 0): number {
  const { start, count } = track;
  if (count === 0 || (start[0] as number) > time) return -1;
  let low = Math.max(0, Math.min(from, count - 1));
  if ((start[low] as number) > time) low = 0;
  let step = 1;
  while (low + step < count && (start[low + step] as number) <= time) {
    low += step;
    step *= 2;
  }
  let high = Math.min(count, low + step);
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((start[middle] as number) <= time) low = middle;
    else high = middle;
  }
  return low;
}

/** Time that bars of one kind take up to a time; `at` is `barAt(track, time)`. */
export function busyUntil(track: Track, which: number, time: number, at: number): number {
  if (at < 0) return 0;
  const sums = track.before[which] as Float64Array;
  const own =
    track.kind[at] === track.kinds[which] ? Math.min(time, track.end[at] as number) - (track.start[at] as number) : 0;
  return (sums[at] as number) + own;
}

/** The shares of every kind in a stretch of time, in the order of `track.kinds`; what is missing to 1 is idle. */
export function sharesOf(track: Track, from: number, to: number): Float64Array {
  const a = barAt(track, from);
  const b = barAt(track, to, Math.max(0, a));
  return Float64Array.from(track.kinds, (_, which) =>
    to > from ? (busyUntil(track, which, to, b) - busyUntil(track, which, from, a)) / (to - from) : 0,
  );
}

/** Fill of a bar as `#rrggbb`. */
export function fillOf(kind: number, chunk: number, chunks: number): string {
  return toneOf(visualOrder[kind] as (typeof visualOrder)[number], chunk, chunks);
}

/** Fill of a kind as `#rrggbb`. */
export function fillOfKind(kind: number): string {
  return computationVisuals[visualOrder[kind] as (typeof visualOrder)[number]].color;
}
