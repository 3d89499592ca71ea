/** @file Which stretch of time is on screen, and how it moves. */

/** A stretch of time over a number of pixels. */
export interface Viewport {
  readonly from: number;
  readonly to: number;
}

/** The whole of a step with a little room. */
export function fit(makespan: number): Viewport {
  const end = makespan > 0 ? makespan : 1;
  return { from: 0, to: end * 1.01 };
}

/** Zooms by a factor (above 1: closer) around a time; never closer than a billionth of the step, never farther than it. */
export function zoom(view: Viewport, factor: number, around: number, makespan: number): Viewport {
  const whole = fit(makespan);
  const width = Math.min(whole.to, Math.max(whole.to * 1e-9, (view.to - view.from) / factor));
  const share = (around - view.from) / (view.to - view.from);
  return within({ from: around - share * width, to: around + (1 - share) * width }, makespan);
}

/** Moves by a time; stays within the step. */
export function pan(view: Viewport, by: number, makespan: number): Viewport {
  return within({ from: view.from + by, to: view.to + by }, makespan);
}

function within(view: Viewport, makespan: number): Viewport {
  const whole = fit(makespan);
  const width = Math.min(view.to - view.from, whole.to);
  const from = Math.max(0, Math.min(view.from, whole.to - width));
  return { from, to: from + width };
}

/** Round times for an axis, about one every `pixels` pixels. */
export function axisTicks(view: Viewport, width: number, pixels = 90): number[] {
  const rough = ((view.to - view.from) * pixels) / Math.max(1, width);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.8) ?? 10) * power;
  const found: number[] = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to && found.length < 200; at += step)
    found.push(Number(at.toPrecision(12)));
  return found;
}
