/** @file Idle time by cause, rank by rank. */
import type { Simulation } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { idleByCause } from '../model/idle.ts';

/** Ranks that are listed one by one. */
const most = 16;

/** The panel beside the timeline where no action is selected. */
export function IdleTable({ simulation }: { readonly simulation: Simulation }): JSX.Element {
  const rows = idleByCause(simulation);
  const { makespan } = simulation;
  const share = (time: number): string => (makespan > 0 ? `${Math.round((time / makespan) * 100)}%` : '0%');
  return (
    <section class="details" aria-label="Idle time by cause">
      <h2>idle by cause</h2>
      <table>
        <thead>
          <tr>
            <th>rank</th>
            <th title="Idle time of the rank, all causes">idle</th>
            <th title="Before the first backward of the rank">fill</th>
            <th title="After the last forward of the rank">drain</th>
            <th title="Waiting for an activation or a gradient that is not computed yet">wait</th>
            <th title="Waiting for a message under way">msg</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, most).map((row) => (
            <tr key={row.rank}>
              <td>{row.rank}</td>
              <td>{share(makespan - row.busy)}</td>
              <td>{share(row.fill)}</td>
              <td>{share(row.drain)}</td>
              <td>{share(row.activation + row.gradient)}</td>
              <td>{share(row.message)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > most ? <p>and {rows.length - most} more ranks</p> : null}
      <p class="hint">
        fill: before the first backward of the rank; drain: after its last forward. In between, wait: for an activation
        or a gradient that is not computed yet; msg: for a message under way.
      </p>
      <p class="hint">Click an action to see what it waits for.</p>
    </section>
  );
}
