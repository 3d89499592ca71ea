/** @file Colours and names of the kinds of actions: every picture (terminal, SVG, trace, studio) takes them from here. */

import { type ActionKind, parseComputationType } from '../model/action.ts';
import { ScheduleError, show } from '../model/errors.ts';

/** How a kind of action looks and what it is called. */
export interface ComputationTypeVisual {
  /** One letter for pictures without room or colours. */
  readonly letter: string;
  /** Fill as `#rrggbb`; readable on light and on dark backgrounds. */
  readonly color: string;
  /** Name in legends. */
  readonly label: string;
  /** Width in time units where no costs are given. */
  readonly width: number;
  /** What the kind is for: pictures group and file by it. */
  readonly role: 'compute' | 'communication' | 'sharding';
}

/**
 * The look of every kind, in legend order.
 * @example computationVisuals.W.label // 'Backward weight'
 */
export const computationVisuals: Readonly<Record<ActionKind, ComputationTypeVisual>> = Object.freeze({
  F: { letter: 'F', color: '#3f7fd6', label: 'Forward', width: 1, role: 'compute' },
  I: { letter: 'I', color: '#0f9797', label: 'Backward input', width: 1, role: 'compute' },
  W: { letter: 'W', color: '#4f9636', label: 'Backward weight', width: 1, role: 'compute' },
  B: { letter: 'B', color: '#da701f', label: 'Full backward', width: 2, role: 'compute' },
  OVERLAP_F_B: { letter: 'X', color: '#9460cc', label: 'Overlapped F and B', width: 3, role: 'compute' },
  UNSHARD: { letter: 'U', color: '#c4568b', label: 'Unshard', width: 1, role: 'sharding' },
  RESHARD: { letter: 'u', color: '#8b8fa3', label: 'Reshard', width: 1, role: 'sharding' },
  REDUCE_GRAD: { letter: 'G', color: '#b8962a', label: 'Reduce gradients', width: 1, role: 'sharding' },
  SEND_F: { letter: 'S', color: '#7aa7e8', label: 'Send forward', width: 1, role: 'communication' },
  RECV_F: { letter: 'R', color: '#5b8bd0', label: 'Receive forward', width: 1, role: 'communication' },
  SEND_B: { letter: 's', color: '#f0a66e', label: 'Send backward', width: 1, role: 'communication' },
  RECV_B: { letter: 'r', color: '#d18a52', label: 'Receive backward', width: 1, role: 'communication' },
});

/** Kinds in legend order. */
export const visualOrder: readonly ActionKind[] = Object.freeze(Object.keys(computationVisuals) as ActionKind[]);

/**
 * The fill of an action: a rank's first stage has the full colour, its later ones lighter tones.
 * @example toneOf('F', 0, 2) // '#3f7fd6'
 */
export function toneOf(kind: ActionKind, chunk: number, chunks: number): string {
  const { color } = computationVisuals[parseComputationType(kind)];
  if (chunk <= 0 || chunks <= 1) return color;
  return mix(color, '#ffffff', (0.45 * Math.min(chunk, chunks - 1)) / (chunks - 1));
}

/**
 * Black or white, whichever reads better on a fill.
 * @example inkOn('#3f7fd6') // '#ffffff'
 */
export function inkOn(fill: string): string {
  if (typeof fill !== 'string' || !/^#[0-9a-f]{6}$/i.test(fill))
    throw new ScheduleError('BAD_OPTION', `inkOn: expected a colour such as '#3f7fd6', got ${show(fill)}`);
  return luminance(fill) > 0.3 ? '#14202b' : '#ffffff';
}

/**
 * A colour between two, both `#rrggbb`; `share` 0 is the first.
 * @example mix('#000000', '#ffffff', 0.5) // '#808080'
 */
export function mix(from: string, to: string, share: number): string {
  const a = channels(from);
  const b = channels(to);
  return `#${a
    .map((v, i) =>
      Math.round(v + (b[i]! - v) * share)
        .toString(16)
        .padStart(2, '0'),
    )
    .join('')}`;
}

/**
 * The nearest colour of the 256-colour terminal palette.
 * @example terminalColor('#ffffff') // 231
 */
export function terminalColor(fill: string): number {
  const rgb = channels(fill);
  const cube = rgb.map((v) => nearestIndex(cubeLevels, v));
  const gray = nearestIndex(grayLevels, (rgb[0]! + rgb[1]! + rgb[2]!) / 3);
  const cubeError = rgb.reduce((sum, v, i) => sum + (v - cubeLevels[cube[i]!]!) ** 2, 0);
  const grayError = rgb.reduce((sum, v) => sum + (v - grayLevels[gray]!) ** 2, 0);
  return grayError < cubeError ? 232 + gray : 16 + 36 * cube[0]! + 6 * cube[1]! + cube[2]!;
}

const cubeLevels: readonly number[] = [0, 95, 135, 175, 215, 255];
const grayLevels: readonly number[] = Array.from({ length: 24 }, (_, i) => 8 + 10 * i);

function nearestIndex(levels: readonly number[], value: number): number {
  let best = 0;
  for (let i = 1; i < levels.length; i++) if (Math.abs(levels[i]! - value) < Math.abs(levels[best]! - value)) best = i;
  return best;
}

function channels(color: string): number[] {
  return [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
}

function luminance(color: string): number {
  const [r, g, b] = channels(color).map((v) => (v / 255) ** 2.2);
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}
