/** @file Where lanes stand: groups of lanes below each other, each group one schedule or one recorded step. */
import type { Lane, Lanes } from '../model/lanes.ts';

/** A group of lanes with a title. */
export interface LaneGroup {
  readonly key: string;
  readonly title: string;
  readonly lanes: Lanes;
  /** Lanes of the plan that this group is held against: drawn above each of its lanes, at a third of the height. */
  readonly planned?: Lanes | null;
}

/** A lane with its place in pixels. */
export interface PlacedLane {
  readonly group: number;
  readonly lane: Lane;
  readonly planned: Lane | null;
  readonly top: number;
  readonly bottom: number;
}

/** The places of all lanes. */
export interface LaneLayout {
  readonly height: number;
  readonly titles: readonly { readonly text: string; readonly top: number }[];
  readonly lanes: readonly PlacedLane[];
}

/** Height of the time axis in pixels. */
export const axisHeight = 22;
const titleHeight = 20;

/** Places lanes so that they fill a height where they can: 3 to 40 pixels each. */
export function layOut(groups: readonly LaneGroup[], height: number): LaneLayout {
  const count = groups.reduce((sum, { lanes }) => sum + lanes.lanes.length, 0);
  const withTitles = groups.length > 1 || groups.some(({ planned }) => planned !== undefined && planned !== null);
  const room = height - axisHeight - (withTitles ? titleHeight * groups.length : 0) - 6;
  const pitch = Math.max(3, Math.min(40, Math.floor(room / Math.max(1, count))));
  const gap = pitch >= 16 ? 3 : pitch >= 6 ? 1 : 0;
  const titles: { text: string; top: number }[] = [];
  const lanes: PlacedLane[] = [];
  let top = axisHeight;
  groups.forEach((group, index) => {
    if (withTitles) {
      titles.push({ text: group.title, top });
      top += titleHeight;
    }
    for (const lane of group.lanes.lanes) {
      lanes.push({
        group: index,
        lane,
        planned: group.planned?.lanes[lane.rank] ?? null,
        top,
        bottom: top + pitch - gap,
      });
      top += pitch;
    }
  });
  return { height: top + 6, titles, lanes };
}
