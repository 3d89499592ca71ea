/** @file A picture as lanes: per rank, bars sorted by start with running sums, so that any stretch of time is added up exactly. */
import { computationVisuals, FaceReader, type Picture, toneOf, visualOrder } from '@pipewright/schedule';
import { Code, kindOf, wordCode } from '@pipewright/schedule/internal';

/** Bars of one rank that do not overlap, in order of time. */
export class Track {
  readonly count: number;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** Index into `visualOrder`. */
  readonly kind: Uint8Array;
  /** Which of the rank's stages, for the tone. */
  readonly chunk: Uint8Array;
  readonly slot: Int32Array;
  /** The kinds that occur, as indices into `visualOrder`, in ascending order. */
  readonly kinds: Uint8Array;
  private known: Float64Array | undefined;

  constructor(columns: Omit<Track, 'sums' | 'count'>) {
    this.count = columns.start.length;
    this.start = columns.start;
    this.end = columns.end;
    this.kind = columns.kind;
    this.chunk = columns.chunk;
    this.slot = columns.slot;
    this.kinds = columns.kinds;
  }

  /** At `i * kinds.length + k`: the time that bars of the k-th kind of `kinds` take before bar i; a row more than bars. */
  get sums(): Float64Array {
    return (this.known ??= this.addUp());
  }

  private addUp(): Float64Array {
    const { count, start, end, kind, kinds } = this;
    const width = kinds.length;
    const place = new Uint8Array(visualOrder.length);
    kinds.forEach((which, k) => {
      place[which] = k;
    });
    const sums = new Float64Array((count + 1) * width);
    for (let i = 0, at = 0; i < count; i++) {
      for (let k = 0; k < width; k++, at++) sums[at + width] = sums[at]!;
      sums[at + place[kind[i]!]!]! += end[i]! - start[i]!;
    }
    return sums;
  }
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
  /** The kinds that occur, as indices into `visualOrder`, in ascending order. */
  readonly kinds: Uint8Array;
}

/** The place in `visualOrder` of a code. */
const kindOfCode = Uint8Array.from({ length: 16 }, (_, code) =>
  code === Code.Bubble || code > Code.OverlapFB ? 0 : visualOrder.indexOf(kindOf(code)),
);

/** Sorts the bars of a picture into lanes. */
export function lanesOf(picture: Picture): Lanes {
  const bars = new RankBars(picture);
  return {
    picture,
    makespan: picture.makespan,
    kinds: bars.kinds,
    lanes: picture.schedule.rows.map((_, rank) => new BarLane(bars, rank)),
  };
}

/** One rank of a picture; what runs beside its compute is sorted when it is first asked for. */
class BarLane implements Lane {
  readonly rank: number;
  readonly chunks: number;
  readonly main: Track;
  private readonly bars: RankBars;
  private known: Track | null | undefined;

  constructor(bars: RankBars, rank: number) {
    this.bars = bars;
    this.rank = rank;
    this.chunks = Math.max(1, bars.faces.chunksOfRank[rank] ?? 1);
    this.main = bars.track(rank, 0);
  }

  get beside(): Track | null {
    if (this.known === undefined) {
      const track = this.bars.track(this.rank, 1);
      this.known = track.count === 0 ? null : track;
    }
    return this.known;
  }
}

/** The bars of a picture that take time, rank by rank; in each, compute first, then what runs beside it. */
class RankBars {
  readonly faces: FaceReader;
  readonly kinds: Uint8Array;
  private readonly picture: Picture;
  /** Bars by rank and side, and where those of each begin: at `rank * 2 + side`. */
  private readonly order: Int32Array;
  private readonly offsets: Int32Array;

  constructor(picture: Picture) {
    const { bars, schedule } = picture;
    const { count, rank, start, end, beside } = bars;
    this.picture = picture;
    this.faces = new FaceReader(schedule);
    const offsets = new Int32Array(schedule.rows.length * 2 + 1);
    const present = new Uint8Array(visualOrder.length);
    const isShown = (i: number): boolean => end[i]! > start[i]! && schedule.rows[rank[i]!] !== undefined;
    for (let i = 0; i < count; i++) {
      if (!isShown(i)) continue;
      offsets[rank[i]! * 2 + beside[i]! + 1]!++;
      present[this.kind(i)] = 1;
    }
    for (let i = 1; i < offsets.length; i++) offsets[i]! += offsets[i - 1]!;
    const order = new Int32Array(offsets.at(-1)!);
    const next = offsets.slice();
    for (let i = 0; i < count; i++) if (isShown(i)) order[next[rank[i]! * 2 + beside[i]!]!++] = i;
    this.order = order;
    this.offsets = offsets;
    this.kinds = indicesOf(present);
  }

  /** The bars of a rank: 0, its compute; 1, what runs beside it. */
  track(rank: number, side: 0 | 1): Track {
    const { bars } = this.picture;
    const at = rank * 2 + side;
    const order = this.order.subarray(this.offsets[at], this.offsets[at + 1]);
    if (!isSorted(order, bars.start)) order.sort((a, b) => bars.start[a]! - bars.start[b]!);
    const count = order.length;
    const start = new Float64Array(count);
    const end = new Float64Array(count);
    const kind = new Uint8Array(count);
    const chunk = new Uint8Array(count);
    const slot = new Int32Array(count);
    const present = new Uint8Array(visualOrder.length);
    let free = Number.NEGATIVE_INFINITY;
    for (let i = 0; i < count; i++) {
      const bar = order[i]!;
      // Bars beside compute may overlap each other: what is hidden below an earlier one is not counted twice.
      const begin = Math.max(bars.start[bar]!, free);
      free = Math.max(begin, bars.end[bar]!);
      start[i] = begin;
      end[i] = free;
      slot[i] = bars.slot[bar]!;
      kind[i] = this.kind(bar);
      chunk[i] = Math.min(255, this.faces.chunk(rank, slot[i]!));
      present[kind[i]!] = 1;
    }
    return new Track({ start, end, kind, chunk, slot, kinds: indicesOf(present) });
  }

  private kind(bar: number): number {
    const { bars, schedule } = this.picture;
    const word = schedule.rows[bars.rank[bar]!]![bars.slot[bar]!]!;
    const code = wordCode(word);
    return kindOfCode[code === Code.Composite ? schedule.composites.codeOf(word) : code]!;
  }
}

function isSorted(order: Int32Array, by: Float64Array): boolean {
  for (let i = 1; i < order.length; i++) if (by[order[i]!]! < by[order[i - 1]!]!) return false;
  return true;
}

/** Where an array is not 0. */
function indicesOf(marks: Uint8Array): Uint8Array {
  return Uint8Array.from(marks.keys()).filter((i) => marks[i] !== 0);
}

/** The last bar that starts at or before a time, from a first guess; -1 where there is none. */
export function barAt({ start, count }: Track, time: number, from = 0): number {
  let low = from < 0 || from >= count || start[from]! > time ? -1 : from;
  // Near the guess first, in growing steps.
  let step = 1;
  while (low + step < count && start[low + step]! <= time) {
    low += step;
    step *= 2;
  }
  let high = Math.min(count, low + step);
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (start[middle]! <= time) low = middle;
    else high = middle;
  }
  return low;
}

/** Writes into `into` the time that bars of every kind take up to a time; `at` is `barAt(track, time)`. */
export function busyUntil(track: Track, time: number, at: number, into: Float64Array): void {
  const { kinds, sums } = track;
  const width = into.length;
  // Before the first bar, the sums before it: none.
  const row = Math.max(0, at) * width;
  for (let k = 0; k < width; k++) into[k] = sums[row + k]!;
  if (at < 0) return;
  const own = Math.min(time, track.end[at]!) - track.start[at]!;
  const kind = track.kind[at]!;
  for (let k = 0; k < width; k++) if (kinds[k] === kind) into[k]! += own;
}

/** The shares of every kind in a stretch of time, in the order of `track.kinds`; what is missing to 1 is idle. */
export function sharesOf(track: Track, from: number, to: number): Float64Array {
  const [before, until] = [new Float64Array(track.kinds.length), new Float64Array(track.kinds.length)];
  const at = barAt(track, from);
  busyUntil(track, from, at, before);
  busyUntil(track, to, barAt(track, to, at), until);
  return until.map((time, k) => (to > from ? (time - before[k]!) / (to - from) : 0));
}

/** Fill of a bar as `#rrggbb`. */
export function fillOf(kind: number, chunk: number, chunks: number): string {
  return toneOf(visualOrder[kind]!, chunk, chunks);
}

/** Fill of a kind as `#rrggbb`. */
export function fillOfKind(kind: number): string {
  return computationVisuals[visualOrder[kind]!].color;
}
