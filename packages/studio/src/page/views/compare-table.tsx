/** @file Schedules side by side in a table that sorts. */
import { percent } from '@pipewright/schedule';
import type { JSX } from 'preact';
import type { Explored } from '../model/explore.ts';
import { showMemory, showTime } from '../model/units.ts';
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

/**
 * The table; a click on a name makes that schedule the main one, the box shows it below. Schedules that do not fit stand below
 * those that do, and those that cannot be built below them.
 */
export function CompareTable(props: {
  readonly rows: readonly Explored[];
  /** Schedules that are simulated only if they are shown: there are too many actions to simulate all. */
  readonly left: readonly string[];
  readonly main: string;
  /** The fastest that fits. */
  readonly best: string | null;
  /** Whether there is a memory limit. */
  readonly limited: boolean;
  readonly compared: readonly string[];
  readonly sort: string;
  readonly onSort: (sort: string) => void;
  readonly onMain: (name: string) => void;
  readonly onCompare: (name: string, on: boolean) => void;
}): JSX.Element {
  const reverse = props.sort.startsWith('-');
  const by = columns.find((name) => name === props.sort.replace(/^-/, '')) ?? 'makespan';
  const rows = props.rows.toSorted((a, b) => {
    if (standing(a) !== standing(b)) return standing(a) - standing(b);
    const order = by === 'name' ? a.name.localeCompare(b.name) : a[by] - b[by];
    return reverse ? -order : order;
  });
  return (
    <table class="compare">
      <caption>
        {props.left.length === 0
          ? 'All schedules on the same work'
          : 'Schedules on the same work; too many actions to simulate all; tick a schedule to simulate it'}
      </caption>
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
          <th>result</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name} class={`${row.name === props.main ? 'main ' : ''}${standing(row) === 0 ? '' : 'refused'}`}>
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
                <td>{showTime(row.makespan)}</td>
                <td>{percent(row.bubble)}</td>
                <td>
                  {showMemory(row.peak)} <small>rank {row.peakRank}</small>
                </td>
                <td>{row.messages}</td>
                <td>{row.stages}</td>
                <td class={row.fits ? '' : 'lacking'}>
                  {!row.fits
                    ? `does not fit: ${showMemory(row.missing)} short on rank ${row.missingRank}`
                    : row.name === props.best
                      ? props.limited
                        ? 'fits, fastest'
                        : 'fastest'
                      : props.limited
                        ? 'fits'
                        : ''}
                </td>
              </>
            ) : (
              <td colSpan={6}>{row.problem}</td>
            )}
          </tr>
        ))}
        {props.left.map((name) => (
          <tr key={name} class="refused">
            <td>
              <input
                type="checkbox"
                aria-label={`show ${name} below`}
                checked={false}
                onChange={() => props.onCompare(name, true)}
              />
            </td>
            <td>
              <Button onClick={() => props.onMain(name)}>{name}</Button>
            </td>
            <td colSpan={6}>not simulated</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** 0: fits, 1: does not, 2: cannot be built. */
function standing({ problem, fits }: Explored): number {
  return problem !== null ? 2 : fits ? 0 : 1;
}
