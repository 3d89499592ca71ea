/** @file The kinds of actions on screen with their colours. */
import { computationVisuals, visualOrder } from '@pipewright/schedule';
import type { JSX } from 'preact';
import type { LaneGroup } from '../timeline/layout.ts';

/** The legend. */
export function Legend({ groups }: { readonly groups: readonly LaneGroup[] }): JSX.Element {
  const present = new Set(groups.flatMap(({ lanes }) => [...lanes.kinds]));
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
