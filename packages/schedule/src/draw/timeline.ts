/** @file A schedule as a terminal picture, to scale: one line per rank, one character per piece of time. */

import type { ActionKind } from '../model/action.ts';
import { checkCount, checkOptions } from '../model/errors.ts';
import { computationVisuals, inkOn, mix, terminalColor, toneOf, visualOrder } from './palette.ts';
import { type BarFace, type Drawable, FaceReader, type Picture, pictureOf } from './picture.ts';
import { percent, plural, quantity, ticks } from './quantity.ts';

/** How `renderTimeline` draws. */
export interface TimelineOptions {
  /** Characters per line; default 100. */
  readonly width?: number;
  /** Colours of the 256-colour terminal palette; default false. */
  readonly color?: boolean;
  /** Title, legend and numbers around the picture; default true. */
  readonly legend?: boolean;
}

/**
 * A schedule or a simulated step as a terminal picture, to scale.
 * @example console.log(renderTimeline(schedule, { width: process.stdout.columns, color: process.stdout.isTTY }))
 */
export function renderTimeline(source: Drawable, options: TimelineOptions = {}): string {
  return drawTimeline(pictureOf(source), options, 'renderTimeline');
}

/** Draws a picture; `renderTimeline` makes the picture first. */
function drawTimeline(picture: Picture, options: TimelineOptions, caller: string): string {
  checkOptions(caller, options, ['width', 'color', 'legend']);
  const width = checkCount(caller, 'width', options.width ?? 100, 20);
  const color = options.color === true;
  const { schedule } = picture;
  const name = (rank: number): string => `rank ${rank}`;
  const gutter = name(Math.max(0, schedule.ranks - 1)).length;
  const sides = Array.from({ length: schedule.ranks }, (_, rank) => sideText(picture, rank));
  const side = sides.reduce((longest, text) => Math.max(longest, text.length), 0);
  const columns = wholeColumns(picture, Math.max(1, width - gutter - side - 4));
  const strips = new Strips(picture, columns, color);
  const rows = strips.rows();
  const lanes = strips.collectiveRows();
  const lines: string[] = [];
  if (options.legend !== false) lines.push(heading(picture));
  const edge = color ? dim('│') : '│';
  for (let rank = 0; rank < schedule.ranks; rank++) {
    lines.push(`${name(rank).padStart(gutter)} ${edge}${rows[rank]}${edge} ${sides[rank]}`);
    if (lanes !== null) lines.push(`${' '.repeat(gutter)} ${edge}${lanes[rank]}${edge} collectives`);
  }
  lines.push(`${' '.repeat(gutter + 2)}${axis(picture.makespan, columns)}`.trimEnd());
  if (options.legend !== false) lines.push(legend(picture, color, isDense(picture, columns)));
  return `${lines.join('\n')}\n`;
}

/** As many columns as there are, or fewer where that gives every unit of time the same number of them. */
function wholeColumns({ bars, makespan }: Picture, room: number): number {
  let unit = makespan;
  for (let i = 0; i < bars.count; i++)
    if (bars.end[i]! > bars.start[i]!) unit = Math.min(unit, bars.end[i]! - bars.start[i]!);
  const units = Math.round(makespan / unit);
  if (!(units >= 1) || units > room) return room;
  const whole = (time: number): boolean => Math.abs(time / unit - Math.round(time / unit)) < 1e-6;
  for (let i = 0; i < bars.count; i++) if (!whole(bars.start[i]!) || !whole(bars.end[i]!)) return room;
  return units * Math.min(8, Math.floor(room / units));
}

/** Name, shape and numbers. */
function heading(picture: Picture): string {
  const { schedule } = picture;
  const lines = [
    `${schedule.name}: ${plural(schedule.ranks, 'rank')}, ${plural(schedule.stages, 'stage')}, ${plural(schedule.microbatches, 'microbatch', 'microbatches')}`,
  ];
  const numbers = [`makespan ${quantity(picture.makespan)}`];
  if (picture.bubble !== null)
    numbers.push(
      `bubble ${percent(picture.bubble.makespan)} of the makespan, ${percent(picture.bubble.span)} of the span`,
    );
  if (picture.memory !== null)
    numbers.push(`peak memory ${quantity(Math.max(0, ...picture.memory.map((curve) => curve.peak)))}`);
  lines.push(numbers.join('; '));
  return lines.join('\n');
}

function sideText(picture: Picture, rank: number): string {
  const busy = `busy ${percent(picture.makespan > 0 ? picture.busy[rank]! / picture.makespan : 0).padStart(6)}`;
  return picture.memory === null ? busy : `${busy}  peak ${quantity(picture.memory[rank]!.peak)}`;
}

/** Time marks; the number stands to the right of its tick. */
function axis(makespan: number, columns: number): string {
  const line = new Array<string>(columns).fill(' ');
  for (const mark of ticks(makespan, Math.max(2, Math.round(columns / 14)))) {
    const at = makespan > 0 ? Math.round((mark / makespan) * columns) : 0;
    const text = `${quantity(mark)}`;
    if (at + text.length > columns) continue;
    for (let i = 0; i < text.length; i++) line[at + i] = text[i]!;
  }
  return line.join('');
}

function legend(picture: Picture, color: boolean, dense: boolean): string {
  const faces = new FaceReader(picture.schedule);
  const present = new Set<ActionKind>();
  const { bars } = picture;
  for (let i = 0; i < bars.count; i++)
    if (bars.end[i]! > bars.start[i]!) {
      const kind = faces.kind(bars.rank[i]!, bars.slot[i]!);
      if (bars.beside[i] === 0 || isCollective(kind)) present.add(kind);
    }
  const items = visualOrder
    .filter((kind) => present.has(kind))
    .map((kind) => {
      const { letter, label } = computationVisuals[kind];
      return `${color ? paint(` ${letter} `, toneOf(kind, 0, 1)) : letter} ${label}`;
    });
  if (dense) return [...(color ? items : []), `${shareBlocks} share of a column's time in use`, '· idle'].join('   ');
  return [...items, `${color ? dim('·') : '·'} idle`].join('   ');
}

/** One strip of characters per rank. */
class Strips {
  private readonly picture: Picture;
  private readonly columns: number;
  private readonly color: boolean;
  private readonly faces: FaceReader;
  /** Bar shown in each column, -1 for idle; and how much of the column it covers. */
  private readonly owner: Int32Array;
  private readonly cover: Float64Array;
  private readonly whole: boolean;
  private readonly dense: boolean;
  private lane: 'compute' | 'collectives' = 'compute';

  constructor(picture: Picture, columns: number, color: boolean) {
    this.picture = picture;
    this.columns = columns;
    this.color = color;
    this.faces = new FaceReader(picture.schedule);
    this.owner = new Int32Array(columns);
    this.cover = new Float64Array(columns);
    this.dense = isDense(picture, columns);
    this.whole = !this.dense && this.wholeTextFits();
  }

  /** What runs beside compute of UNSHARD and REDUCE_GRAD; null where nothing of it takes time. */
  collectiveRows(): string[] | null {
    const { bars } = this.picture;
    this.lane = 'collectives';
    let found = false;
    for (let i = 0; i < bars.count && !found; i++) found = bars.end[i]! > bars.start[i]! && this.isShown(i);
    return found ? this.rows() : null;
  }

  /** Whether a bar belongs to the lane that is drawn. */
  private isShown(index: number): boolean {
    const { bars } = this.picture;
    if (this.lane === 'compute') return bars.beside[index] === 0;
    return bars.beside[index] === 1 && isCollective(this.faces.kind(bars.rank[index]!, bars.slot[index]!));
  }

  rows(): string[] {
    const { bars, schedule } = this.picture;
    const rows: string[] = [];
    let first = 0;
    for (let rank = 0; rank < schedule.ranks; rank++) {
      let end = first;
      while (end < bars.count && bars.rank[end] === rank) end++;
      rows.push(this.row(first, end));
      first = end;
    }
    return rows;
  }

  /** The strip of the bars from `first` to `end`: each column shows what fills most of it. */
  private row(first: number, end: number): string {
    const { owner, cover, columns } = this;
    const { bars, makespan } = this.picture;
    const scale = makespan > 0 ? columns / makespan : 0;
    if (this.dense) return this.shares(first, end, scale);
    owner.fill(-1);
    cover.fill(0);
    const idle = new Float64Array(columns).fill(1);
    for (let i = first; i < end; i++) {
      if (!this.isShown(i)) continue;
      const from = bars.start[i]! * scale;
      const to = bars.end[i]! * scale;
      for (let c = Math.floor(from); c < Math.min(columns, Math.ceil(to)); c++) {
        const share = Math.min(to, c + 1) - Math.max(from, c);
        idle[c]! -= share;
        if (share > cover[c]! + 1e-9) {
          cover[c] = share;
          owner[c] = i;
        }
      }
    }
    for (let c = 0; c < columns; c++) if (idle[c]! > cover[c]! + 1e-9) owner[c] = -1;
    let text = '';
    for (let c = 0; c < columns; ) {
      let next = c + 1;
      while (next < columns && owner[next] === owner[c]) next++;
      text += owner[c] === -1 ? this.idle(next - c) : this.bar(owner[c]!, next - c);
      c = next;
    }
    return text;
  }

  /** A row whose actions are shorter than a column: how much of each column is busy, in the colour of what fills most of it. */
  private shares(first: number, end: number, scale: number): string {
    const { columns } = this;
    const { bars } = this.picture;
    const busy = new Float64Array(columns);
    const byKind = new Map<ActionKind, Float64Array>();
    for (let i = first; i < end; i++) {
      if (!this.isShown(i)) continue;
      const kind = this.faces.kind(bars.rank[i]!, bars.slot[i]!);
      let own = byKind.get(kind);
      if (own === undefined) byKind.set(kind, (own = new Float64Array(columns)));
      const from = bars.start[i]! * scale;
      const to = bars.end[i]! * scale;
      for (let c = Math.floor(from); c < Math.min(columns, Math.ceil(to)); c++) {
        const share = Math.min(to, c + 1) - Math.max(from, c);
        busy[c]! += share;
        own[c]! += share;
      }
    }
    let text = '';
    for (let c = 0; c < columns; c++) {
      const level = Math.round(Math.min(1, busy[c]!) * 8);
      if (level === 0) text += this.idle(1);
      else text += this.level(level, [...byKind].reduce((a, b) => (b[1][c]! > a[1][c]! + 1e-9 ? b : a))[0]);
    }
    return text;
  }

  private level(level: number, kind: ActionKind): string {
    const block = shareBlocks[level - 1]!;
    return this.color ? ink(block, toneOf(kind, 0, 1)) : block;
  }

  private idle(length: number): string {
    return this.color ? dim('·'.repeat(length)) : '·'.repeat(length);
  }

  private bar(index: number, length: number): string {
    const rank = this.picture.bars.rank[index]!;
    const face = this.faces.face(rank, this.picture.bars.slot[index]!);
    const { letter } = computationVisuals[face.kind];
    if (!this.color)
      return longestThatFits([this.whole ? plainText(face) : '', `${letter}${face.short}`, letter], length).padEnd(
        length,
        '─',
      );
    const tone = toneOf(face.kind, face.chunk, this.faces.chunksOfRank[rank]!);
    const text = longestThatFits([this.whole ? plainText(face) : '', face.short], length > 1 ? length - 1 : 1);
    return paint(text.padEnd(length), /[13579]$/.test(face.short) ? mix(tone, '#000000', 0.16) : tone);
  }

  /** Whether the whole text of nearly every action fits. */
  private wholeTextFits(): boolean {
    const { bars, makespan } = this.picture;
    let misfits = 0;
    for (let i = 0; i < bars.count; i++) {
      if (bars.beside[i] === 1) continue;
      const length = ((bars.end[i]! - bars.start[i]!) / makespan) * this.columns;
      if (length > 0 && plainText(this.faces.face(bars.rank[i]!, bars.slot[i]!)).length > length - 1 + 1e-6) misfits++;
    }
    return misfits <= bars.count * 0.02;
  }
}

function isCollective(kind: ActionKind): boolean {
  return kind === 'UNSHARD' || kind === 'REDUCE_GRAD';
}

/** Eighths of a column. */
const shareBlocks = '▁▂▃▄▅▆▇█';

/** Whether most actions are shorter than a column, so that a column has to show shares. */
function isDense({ bars, makespan }: Picture, columns: number): boolean {
  let shorter = 0;
  let all = 0;
  for (let i = 0; i < bars.count; i++) {
    const length = bars.end[i]! - bars.start[i]!;
    if (bars.beside[i] === 1 || length === 0) continue;
    all++;
    if (length * columns < makespan * (1 - 1e-9)) shorter++;
  }
  return shorter * 2 > all;
}

function plainText(face: BarFace): string {
  return face.parts.length > 0 ? face.parts.map((part) => part.text).join('+') : face.text;
}

function longestThatFits(candidates: readonly string[], length: number): string {
  return candidates.find((text) => text !== '' && text.length <= length) ?? '';
}

function paint(text: string, fill: string): string {
  return `\u001b[48;5;${terminalColor(fill)};38;5;${terminalColor(inkOn(fill))}m${text}\u001b[0m`;
}

function ink(text: string, tone: string): string {
  return `\u001b[38;5;${terminalColor(tone)}m${text}\u001b[0m`;
}

function dim(text: string): string {
  return `\u001b[2m${text}\u001b[0m`;
}
