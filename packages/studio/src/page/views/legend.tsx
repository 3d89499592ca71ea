/** @file The kinds of actions on screen with their colours. */
import { computationVisuals, visualOrder } from '@pipewright/schedule';
import type { JSX } from 'preact';
import type { LaneGroup } from '../timeline/layout.ts';

/** The legend. */
export function Legend({ groups }: { readonly groups: readonly LaneGroup[] }): JSX.Element {
  const present = new Set<number>();
  for (const { lanes } of groups)
    for (const { main, beside } of lanes.lanes) {
      for (const kind of main.kinds) present.add(kind);
      for (const kind of beside?.kinds ?? []) present.add(kind);
    }
  return (
    <ul class="legend" aria-label="Legend">
      {visualOrder
        .filter((_, i) => present.has(i))
        .map((kind) => (
          <li key={kind}>
            <span class="swatch" style={{ background: computationVisuals[kind].color }} />
            {computationVisuals[kind].label}
          </li>
        ))}
      <li>
        <span class="swatch idle" />
        idle
      </li>
    </ul>
  );
}
