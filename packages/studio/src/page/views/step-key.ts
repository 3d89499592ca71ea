/** @file Keys that move the selection: left and right within a row, up and down along dependencies, or from rank to rank. */
import type { Schedule } from '@pipewright/schedule';
import type { Links } from '../model/links.ts';
import type { GroupCell } from '../timeline/timeline-canvas.ts';

/** The cell that a key leads to; null to select nothing, undefined where the key means nothing. */
export function stepKey(
  event: { readonly key: string },
  selected: GroupCell | null,
  schedule: Schedule | null,
  links: Links | null,
): GroupCell | null | undefined {
  if (schedule === null) return undefined;
  if (event.key === 'Escape') return null;
  if (!event.key.startsWith('Arrow')) return undefined;
  if (selected === null) {
    const slot = schedule.rows[0]?.findIndex((word) => word !== 0) ?? -1;
    return slot < 0 ? undefined : { group: 0, rank: 0, slot };
  }
  const row = schedule.rows[selected.rank] ?? new Int32Array(0);
  if (event.key === 'ArrowRight' || event.key === 'ArrowLeft') {
    const by = event.key === 'ArrowRight' ? 1 : -1;
    for (let slot = selected.slot + by; slot >= 0 && slot < row.length; slot += by)
      if (row[slot] !== 0) return { ...selected, slot };
    return selected;
  }
  if (links === null) {
    // Without dependencies, to the rank above or below.
    const rank = selected.rank + (event.key === 'ArrowUp' ? -1 : 1);
    const other = schedule.rows[rank] ?? new Int32Array(0);
    const slot = other.subarray(0, selected.slot + 1).findLastIndex((word) => word !== 0);
    const near = slot >= 0 ? slot : other.findIndex((word) => word !== 0);
    return near < 0 ? selected : { group: selected.group, rank, slot: near };
  }
  const found = event.key === 'ArrowUp' ? links.before(selected) : links.after(selected);
  const link = found.find(({ message }) => message) ?? found[0];
  if (link === undefined) return selected;
  return { group: selected.group, ...(event.key === 'ArrowUp' ? link.from : link.to) };
}
