/** @file A recorded step beside its plan, action by action: what took longer, and what had to wait longer than planned. */
import { formatAction, percent, plural } from '@pipewright/schedule';
import type { Lane, Track } from './lanes.ts';
import type { CellPlace } from './links.ts';
import type { RecordedView } from './recorded.ts';

/** One action, planned and recorded. Milliseconds from the beginning of the step. */
export interface Difference extends CellPlace {
  readonly planned: readonly [start: number, end: number];
  readonly recorded: readonly [start: number, end: number];
  /** Recorded duration over the planned one, less 1. */
  readonly longer: number;
}

/** What differs from the plan. */
export interface Differences {
  /** Actions that took longer than planned. */
  readonly longer: readonly Difference[];
  /** Actions before which the rank waited longer than planned. */
  readonly late: readonly Difference[];
  /** Compute time of each rank, recorded over planned, less 1. */
  readonly ranks: readonly number[];
}

/** Share by which an action must be longer to be marked. */
const notable = 0.1;
/** Share of the step below which nothing is marked. */
const least = 0.005;
/** Share of the step by which a wait must be longer to be marked. */
const leastWait = 0.02;

/** Compares a recorded step with its plan; null without one. */
export function differencesOf({ recorded, planned }: RecordedView): Differences | null {
  if (planned === null || planned.makespan <= 0) return null;
  const longer: Difference[] = [];
  const late: Difference[] = [];
  const ranks = recorded.lanes.map((lane) => {
    const plan = planned.lanes[lane.rank];
    if (plan === undefined) return 0;
    const pairs = pairsOf(lane, plan.main);
    let delay = 0;
    for (const one of pairs) {
      const { planned: before, recorded: now } = one;
      if (one.longer > notable && lengthOf(now) - lengthOf(before) > least * planned.makespan) longer.push(one);
      if (now[0] - before[0] - delay > leastWait * planned.makespan) late.push(one);
      delay = Math.max(0, now[1] - before[1]);
    }
    const sum = (of: (one: Difference) => readonly [number, number]): number =>
      pairs.reduce((total, one) => total + lengthOf(of(one)), 0);
    const wanted = sum((one) => one.planned);
    return wanted === 0 ? 0 : sum((one) => one.recorded) / wanted - 1;
  });
  return { longer, late, ranks };
}

/** Actions of a rank that are in both, in the order in which they ran. */
function pairsOf(lane: Lane, plan: Track): Difference[] {
  const at = new Map<number, number>();
  for (let i = 0; i < plan.count; i++) at.set(plan.slot[i]!, i);
  const { main } = lane;
  return Array.from({ length: main.count }, (_, i) => i).flatMap((i) => {
    const slot = main.slot[i]!;
    const other = at.get(slot);
    if (other === undefined) return [];
    const planned = [plan.start[other]!, plan.end[other]!] as const;
    const recorded = [main.start[i]!, main.end[i]!] as const;
    const longer = lengthOf(planned) === 0 ? 0 : lengthOf(recorded) / lengthOf(planned) - 1;
    return [{ rank: lane.rank, slot, planned, recorded, longer }];
  });
}

function lengthOf([start, end]: readonly [number, number]): number {
  return end - start;
}

/** Which ranks compute longer than planned, the worst first. */
export function saySlowRanks({ ranks }: Differences): string[] {
  return ranks
    .map((longer, rank) => ({ longer, rank }))
    .filter(({ longer }) => longer > notable)
    .sort((a, b) => b.longer - a.longer)
    .map(({ longer, rank }) => `Rank ${rank} computes ${percent(longer)} longer than planned.`);
}

/** How many actions differ, and the worst of them; `than` says from what: `planned`, or `on average`. */
export function sayDifferences({ longer, late }: Differences, { recorded }: RecordedView, than: string): string {
  if (longer.length === 0 && late.length === 0) return `Every action took about as long as ${than}.`;
  const worst = longer.reduce<Difference | null>((a, b) => (a === null || b.longer > a.longer ? b : a), null);
  const action = worst === null ? null : recorded.picture.schedule.at(worst.rank, worst.slot);
  const named =
    worst === null || action === null
      ? ''
      : `, most ${formatAction(action)} on rank ${worst.rank} (${percent(worst.longer)})`;
  const clauses = [
    longer.length === 0
      ? null
      : `${plural(longer.length, 'action')} took over ${Math.round(notable * 100)}% longer than ${than}${named}`,
    late.length === 0
      ? null
      : `${plural(late.length, 'action')} had to wait longer${longer.length === 0 ? ` than ${than}` : ''}`,
  ];
  return `${clauses.filter((clause) => clause !== null).join('; ')}.`;
}

/** The difference of one action, in words. */
export function sayOne(view: RecordedView, place: CellPlace): string | null {
  const lane = view.recorded.lanes[place.rank];
  const plan = view.planned?.lanes[place.rank];
  const action = view.recorded.picture.schedule.at(place.rank, place.slot);
  if (lane === undefined || action === null) return null;
  const name = `${formatAction(action)} on rank ${place.rank}`;
  const { main, beside } = lane;
  const at = main.slot.indexOf(place.slot);
  if (at < 0) {
    const other = beside?.slot.indexOf(place.slot) ?? -1;
    return other < 0 || beside === null ? null : `${name}: ${span(beside.start[other]!, beside.end[other]!)}.`;
  }
  const now = span(main.start[at]!, main.end[at]!);
  const found = plan === undefined ? undefined : pairsOf(lane, plan.main).find(({ slot }) => slot === place.slot);
  if (found === undefined) return `${name}: ${now}.`;
  const shift = found.recorded[0] - found.planned[0];
  const length = found.longer < 0 ? `${percent(-found.longer)} shorter` : `${percent(found.longer)} longer`;
  const apart = Math.abs(shift).toFixed(2);
  const starts = apart === '0.00' ? 'on time' : `${apart} ms ${shift < 0 ? 'earlier' : 'later'}`;
  return `${name}: planned ${span(...found.planned)}, recorded ${now}: starts ${starts}, takes ${length}.`;
}

function span(start: number, end: number): string {
  return `${start.toFixed(2)} to ${end.toFixed(2)} ms`;
}
