/** @file Schedules side by side in a table that sorts. */
import { percent, quantity } from '@pipewright/schedule';
import type { JSX } from 'preact';
import type { Explored } from '../model/explore.ts';
import { Button } from './controls.tsx';

const columns = ['name', 'makespan', 'bubble', 'peak', 'messages', 'stages'] as const;
type ColumnName = (typeof columns)[number];

const titles: Readonly<Record<ColumnName, string>> = {
  name: 'schedule',
  makespan: 'step time',
  bubble: 'idle',
  peak: 'peak memory',
  messages: 'messages',
  stages: 'stages',
};

/** The table; a click on a name makes that schedule the main one, the box shows it below. */
export function CompareTable(props: {
  readonly rows: readonly Explored[];
  readonly main: string;
  readonly compared: readonly string[];
  readonly sort: string;
  readonly onSort: (sort: string) => void;
  readonly onMain: (name: string) => void;
  readonly onCompare: (name: string, on: boolean) => void;
}): JSX.Element {
  const reverse = props.sort.startsWith('-');
  const by = columns.find((name) => name === props.sort.replace(/^-/, '')) ?? 'makespan';
  const rows = props.rows.toSorted((a, b) => {
    if ((a.problem === null) !== (b.problem === null)) return a.problem === null ? -1 : 1;
    const order = by === 'name' ? a.name.localeCompare(b.name) : a[by] - b[by];
    return reverse ? -order : order;
  });
  return (
    <table class="compare">
      <caption>All schedules on the same work</caption>
      <thead>
        <tr>
          <th>show</th>
          {columns.map((name) => (
            <th key={name} aria-sort={by !== name ? 'none' : reverse ? 'descending' : 'ascending'}>
              <Button onClick={() => props.onSort(by === name && !reverse ? `-${name}` : name)}>
                {titles[name]}
                {by === name ? (reverse ? ' ▾' : ' ▴') : ''}
              </Button>
            </th>
          ))}
          <th>memory limit</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name} class={row.name === props.main ? 'main' : row.problem === null ? '' : 'refused'}>
            <td>
              <input
                type="checkbox"
                aria-label={`show ${row.name} below`}
                checked={props.compared.includes(row.name)}
                disabled={row.problem !== null || row.name === props.main}
                onChange={(event) => props.onCompare(row.name, event.currentTarget.checked)}
              />
            </td>
            <td>
              <Button onClick={() => props.onMain(row.name)}>{row.name}</Button>
            </td>
            {row.problem === null ? (
              <>
                <td>{quantity(row.makespan)}</td>
                <td>{percent(row.bubble)}</td>
                <td>
                  {quantity(row.peak)} <small>rank {row.peakRank}</small>
                </td>
                <td>{row.messages}</td>
                <td>{row.stages}</td>
                <td>{row.fits ? 'fits' : 'too large'}</td>
              </>
            ) : (
              <td colSpan={6}>{row.problem}</td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
