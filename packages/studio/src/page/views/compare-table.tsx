/** @file Schedules side by side in a table that sorts. */
import { percent } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { type Explored, sayContinued } from '../model/explore.ts';
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
  /** Schedules that are still being simulated. */
  readonly missing: readonly string[];
  /** Whether the rows are of the settings before. */
  readonly isOld: boolean;
  readonly main: string;
  /** Ranks of the step. */
  readonly ranks: number;
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
    <div class="scroll">
      <table class={`compare${props.isOld ? ' old' : ''}`}>
        <caption>
          All schedules on the same work
          {props.isOld ? ', being simulated anew' : ''}
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
            <tr
              key={row.name}
              class={`${row.name === props.main ? 'main ' : ''}${standing(row) === 0 ? '' : 'refused'}`}
            >
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
                  <td>
                    {row.simulated === null ? '' : 'about '}
                    {showTime(row.makespan)}
                  </td>
                  <td>{percent(row.bubble)}</td>
                  <td>
                    {showMemory(row.peak)} <small>rank {row.peakRank}</small>
                  </td>
                  <td>{row.messages}</td>
                  <td>{row.stages}</td>
                  <td class={row.fits ? '' : 'lacking'}>
                    {[
                      resultOf(row, row.name === props.best, props.limited),
                      ...(row.simulated === null ? [] : [`continued from ${sayContinued(row.simulated, props.ranks)}`]),
                    ]
                      .filter((text) => text !== '')
                      .join('; ')}
                  </td>
                </>
              ) : (
                <td colSpan={6}>{row.problem}</td>
              )}
            </tr>
          ))}
          {props.missing.map((name) => (
            <tr key={name} class="refused">
              <td />
              <td>
                <Button onClick={() => props.onMain(name)}>{name}</Button>
              </td>
              <td colSpan={6}>is being simulated</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Whether a schedule fits, and how much is missing. */
function resultOf({ fits, missing, missingRank }: Explored, isBest: boolean, limited: boolean): string {
  if (!fits) return `does not fit: ${showMemory(missing)} short on rank ${missingRank}`;
  return [...(limited ? ['fits'] : []), ...(isBest ? ['fastest'] : [])].join(', ');
}

/** 0: fits, 1: does not, 2: cannot be built. */
function standing({ problem, fits }: Explored): number {
  return problem !== null ? 2 : fits ? 0 : 1;
}
