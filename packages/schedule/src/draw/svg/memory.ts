/** @file The memory panel of an SVG picture: one stepped line per rank, or a band with its highest and lowest rank. */

import { mix } from '../palette.ts';
import type { MemoryCurve, Picture } from '../picture.ts';
import { quantity, ticks } from '../quantity.ts';
import type { SvgPlan } from './lanes.ts';
import { type Markup, num } from './markup.ts';

/** Where the panel stands. */
export interface MemoryPanel {
  readonly top: number;
  readonly height: number;
}

const mostLines = 8;

/** Colour of a rank's line: from the first rank's blue to the last rank's red. */
function lineColor(index: number, count: number): string {
  const share = count <= 1 ? 0 : index / (count - 1);
  return share < 0.5 ? mix('#3f7fd6', '#9460cc', share * 2) : mix('#9460cc', '#e0564f', share * 2 - 1);
}

/** Draws the panel below the lanes, on the same time axis. */
export function drawMemory(
  out: Markup,
  picture: Picture,
  plan: SvgPlan & MemoryPanel & { readonly unit: string },
): void {
  const curves = picture.memory!;
  const peak = Math.max(...curves.map((curve) => curve.peak));
  const bottom = plan.top + plan.height;
  const marks = ticks(peak, 3);
  const y = (amount: number): number => bottom - (peak > 0 ? amount / peak : 0) * (plan.height - 4);
  const end = plan.left + picture.makespan * plan.scale;
  out.text(
    plan.left,
    plan.top - 12,
    `Memory held per rank${plan.unit === '' ? '' : `, ${plan.unit}`}`,
    'class="pw-soft" font-size="11"',
  );
  for (const mark of marks) {
    out.add(`<path class="pw-grid" d="M${num(plan.left)} ${num(y(mark))}H${num(end)}"/>`);
    out.text(plan.left - 8, y(mark), quantity(mark), 'class="pw-soft pw-end" font-size="10"');
  }
  if (curves.length <= mostLines) drawLines(out, curves, { plan, y, makespan: picture.makespan });
  else drawBand(out, curves, { plan, y, makespan: picture.makespan });
}

interface Space {
  readonly plan: SvgPlan & MemoryPanel;
  readonly y: (amount: number) => number;
  readonly makespan: number;
}

/** All ranks, each with its own line and its name on the right. */
function drawLines(out: Markup, curves: readonly MemoryCurve[], space: Space): void {
  const { plan } = space;
  const step = Math.min(15, plan.height / curves.length);
  curves.forEach((curve, rank) => {
    const color = lineColor(rank, curves.length);
    out.add(
      `<path d="${stepPath(curve, space)}" fill="none" stroke="${color}" stroke-width="1.8" stroke-linejoin="round"/>`,
    );
    const at = plan.top + 6 + rank * step;
    out.add(`<path d="M${num(plan.right + 10)} ${num(at)}h14" stroke="${color}" stroke-width="2.4"/>`);
    out.text(plan.right + 30, at, `rank ${rank}`, 'class="pw-soft" font-size="10"');
  });
}

/** Many ranks: what the least and the most loaded one hold at each moment, and the ranks with the highest and lowest peak. */
function drawBand(out: Markup, curves: readonly MemoryCurve[], space: Space): void {
  const { plan, makespan } = space;
  const columns = Math.max(2, Math.round(makespan * plan.scale));
  const low = new Float64Array(columns).fill(Number.POSITIVE_INFINITY);
  const high = new Float64Array(columns);
  for (const curve of curves) {
    const sampled = sample(curve, columns, makespan);
    for (let i = 0; i < columns; i++) {
      low[i] = Math.min(low[i]!, sampled[i]!);
      high[i] = Math.max(high[i]!, sampled[i]!);
    }
  }
  const edges = [...corners(high, space), ...corners(low, space).reverse()];
  out.add(`<path d="M${edges.join('L')}z" fill="#3f7fd6" fill-opacity="0.22"/>`);
  const peaks = curves.map((curve) => curve.peak);
  const most = peaks.indexOf(Math.max(...peaks));
  const least = peaks.lastIndexOf(Math.min(...peaks));
  const lines =
    most === least
      ? [{ rank: most, color: '#e0564f' }]
      : [
          { rank: most, color: '#e0564f' },
          { rank: least, color: '#0f9797' },
        ];
  lines.forEach(({ rank, color }, i) => {
    out.add(
      `<path d="${stepPath(curves[rank]!, space)}" fill="none" stroke="${color}" stroke-width="1.5" stroke-linejoin="round"/>`,
    );
    const at = plan.top + 8 + i * 16;
    out.add(`<path d="M${num(plan.right + 10)} ${num(at)}h14" stroke="${color}" stroke-width="2.4"/>`);
    out.text(plan.right + 30, at, `rank ${rank}`, 'class="pw-soft" font-size="10"');
  });
  const at = plan.top + 8 + lines.length * 16;
  out.add(
    `<rect x="${num(plan.right + 10)}" y="${num(at - 5)}" width="14" height="10" fill="#3f7fd6" fill-opacity="0.22"/>`,
  );
  out.text(plan.right + 30, at, 'all ranks', 'class="pw-soft" font-size="10"');
}

/** A curve as a stepped path; where there are more steps than pixels, the highest value of each pixel. */
function stepPath(curve: MemoryCurve, space: Space): string {
  const { plan, y, makespan } = space;
  const columns = Math.max(2, Math.round(makespan * plan.scale));
  if (curve.time.length > columns) {
    return `M${corners(sample(curve, columns, makespan), space).join('L')}`;
  }
  let path = `M${num(plan.left)} ${num(y(0))}`;
  for (let i = 0; i < curve.time.length; i++) {
    if (curve.amount[i] === (i === 0 ? 0 : curve.amount[i - 1])) continue;
    path += `H${num(plan.left + curve.time[i]! * plan.scale)}V${num(y(curve.amount[i]!))}`;
  }
  return `${path}H${num(plan.left + makespan * plan.scale)}`;
}

/** The points of a sampled curve, without those between two equal ones. */
function corners(sampled: Float64Array, { plan, y }: Space): string[] {
  const points: string[] = [];
  sampled.forEach((amount, i) => {
    if (i > 0 && sampled[i - 1] === amount && sampled[i + 1] === amount) return;
    points.push(`${num(plan.left + i)} ${num(y(amount))}`);
  });
  return points;
}

/** The highest value held during each of `columns` equal pieces of time. */
function sample(curve: MemoryCurve, columns: number, makespan: number): Float64Array {
  const highest = new Float64Array(columns);
  let next = 0;
  let held = 0;
  for (let column = 0; column < columns; column++) {
    const until = ((column + 1) / columns) * makespan;
    let most = held;
    while (next < curve.time.length && curve.time[next]! < until - 1e-12 * makespan) {
      held = curve.amount[next++]!;
      most = Math.max(most, held);
    }
    highest[column] = most;
  }
  return highest;
}
