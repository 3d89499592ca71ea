/** @file What is known of one action: times, what it waits for, what waits for it, slack. */
import { formatAction, type Simulation } from '@pipewright/schedule';
import type { JSX } from 'preact';
import type { CellPlace, Links } from '../model/links.ts';
import { showTime } from '../model/units.ts';
import { Button } from './controls.tsx';

/** The panel beside the timeline. */
export function Details(props: {
  readonly simulation: Simulation;
  readonly links: Links;
  readonly cell: CellPlace;
  readonly onGo: (cell: CellPlace) => void;
}): JSX.Element | null {
  const { simulation, links, cell } = props;
  const event = simulation.at(cell.rank, cell.slot);
  if (event === null) return null;
  const slack = links.slack(cell);
  const list = (places: readonly { place: CellPlace; note: string }[]): JSX.Element => (
    <ul>
      {places.map(({ place, note }) => (
        <li key={`${place.rank}/${place.slot}`}>
          <Button onClick={() => props.onGo(place)}>{textOf(simulation, place)}</Button> {note}
        </li>
      ))}
      {places.length === 0 ? <li>nothing</li> : null}
    </ul>
  );
  return (
    <section class="details" aria-label="Selected action" aria-live="polite">
      <h2>{formatAction(event.action)}</h2>
      <p>
        rank {cell.rank}, slot {cell.slot}
        <br />
        {showTime(event.start)} to {showTime(event.end)} ({showTime(event.end - event.start)})
        <br />
        <strong>{slack === 0 ? 'critical: no slack' : `slack ${showTime(slack)}`}</strong>
      </p>
      <h3>waits for</h3>
      {list(links.before(cell).map((link) => ({ place: link.from, note: noteOf(link) })))}
      <h3>needed by</h3>
      {list(links.after(cell).map((link) => ({ place: link.to, note: noteOf(link) })))}
    </section>
  );
}

function textOf(simulation: Simulation, place: CellPlace): string {
  const action = simulation.schedule.at(place.rank, place.slot);
  return action === null ? '' : `${formatAction(action)} on rank ${place.rank}`;
}

function noteOf({ message, delay, backward }: { message: boolean; delay: number; backward: boolean }): string {
  if (!message) return 'in the same row';
  return `${backward ? 'gradient' : 'activation'}${delay > 0 ? `, ${showTime(delay)} under way` : ''}`;
}
