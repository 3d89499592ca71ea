/** @file Files: recordings, traces and schedules that were saved. */
import {
  meanCosts,
  percent,
  quantity,
  recordingTrace,
  renderSvg,
  type Schedule,
  ScheduleError,
  toChromeTrace,
} from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { differencesOf, sayDifferences, sayOne } from '../model/differences.ts';
import { readSchedule } from '../model/edit.ts';
import { type GivenFile, type OpenedFiles, openFiles } from '../model/open-files.ts';
import { type OpenedPlan, openPlan } from '../model/plan.ts';
import type { OpenedRun } from '../model/recorded.ts';
import type { CostSettings } from '../model/settings.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { Button, download } from './controls.tsx';
import { Legend } from './legend.tsx';
import { RunTimeline } from './run-timeline.tsx';
import { savePng } from './save-png.ts';
import type { ThemeName } from './theme.ts';

/** Largest file that is read, in bytes. */
const mostBytes = 512 * 1024 * 1024;

/** The view. */
export function Files(props: {
  readonly theme: ThemeName;
  readonly height: number;
  /** What was opened; it outlives this view. */
  readonly opened: OpenedFiles;
  readonly onOpened: (opened: OpenedFiles) => void;
  readonly onSchedule: (schedule: Schedule) => void;
  readonly onPlan: (plan: OpenedPlan) => void;
  readonly onCosts: (costs: Pick<CostSettings, 'F' | 'I' | 'W'> & Partial<CostSettings>, run: OpenedRun) => void;
}): JSX.Element {
  const { run, at, problem } = props.opened;
  const setProblem = (text: string): void => props.onOpened({ ...props.opened, problem: text });
  const [selected, select] = useState<GroupCell | null>(null);
  const open = async (list: FileList | null): Promise<void> => {
    const files = [...(list ?? [])];
    if (files.length === 0) return;
    const large = files.find(({ size }) => size > mostBytes);
    if (large !== undefined) {
      setProblem(`${large.name} has ${quantity(large.size)} bytes; at most ${quantity(mostBytes)} are opened here`);
      return;
    }
    const given = await Promise.all(files.map(async (file) => ({ name: file.name, text: await file.text() })));
    try {
      const plan = given.length === 1 ? openPlan((given[0] as GivenFile).name, (given[0] as GivenFile).text) : null;
      if (plan !== null) {
        props.onPlan(plan);
        return;
      }
    } catch (error) {
      if (!(error instanceof ScheduleError)) throw error;
      setProblem(error.message);
      return;
    }
    const schedule = given.length === 1 ? asSchedule(given[0] as GivenFile) : null;
    if (schedule !== null) {
      props.onSchedule(schedule);
      return;
    }
    const opened = openFiles(given);
    if (opened.run === null) {
      props.onOpened({ ...props.opened, problem: opened.problem });
      return;
    }
    props.onOpened(opened);
    select(null);
  };
  const view = useMemo(() => (run === null ? null : run.view(Math.min(at, run.stepCount - 1))), [run, at]);
  const differences = useMemo(() => (view === null ? null : differencesOf(view)), [view]);
  const overlay: Overlay = useMemo(
    () => ({
      ...{ selected, hovered: null, arrows: [], marks: [], critical: [], drop: null },
      longer: differences?.longer ?? [],
      late: differences?.late ?? [],
    }),
    [selected, differences],
  );
  return (
    <div class="view">
      <div class="bar">
        <label class="field">
          open
          <input
            type="file"
            multiple
            accept=".json,.csv,.txt"
            aria-label="Recordings, traces or schedules to open"
            onChange={(event) => void open(event.currentTarget.files)}
          />
        </label>
        {run !== null && run.stepCount > 1 ? (
          <label class="field">
            step {run.stepNumber(at)}
            <input
              type="range"
              min={0}
              max={run.stepCount - 1}
              value={at}
              aria-label="Recorded step"
              onInput={(event) => props.onOpened({ ...props.opened, at: Number(event.currentTarget.value) })}
            />
          </label>
        ) : null}
        <span class="spring" />
        {run?.recording ? (
          <>
            <Button
              title="Explore other schedules with the recorded durations"
              onClick={() => {
                const { F, I, W, B } = meanCosts(run.recording!);
                const list = (value: unknown): number[] =>
                  Array.isArray(value) ? (value as number[]).map((one) => Number(one.toPrecision(4))) : [];
                props.onCosts({ F: list(F), I: list(I), W: list(W), B: list(B) }, run);
              }}
            >
              explore with these costs
            </Button>
          </>
        ) : null}
        {run === null || view === null ? null : (
          <>
            <Button
              title="Save the step as a drawing"
              onClick={() =>
                download(
                  `${stem(run.name)}.svg`,
                  'image/svg+xml',
                  renderSvg(view.recorded.picture, {
                    title: `${run.name}, step ${run.stepNumber(at)}`,
                    timeUnit: 'ms',
                  }),
                )
              }
            >
              SVG
            </Button>
            <Button title="Save what the timeline shows as a picture" onClick={() => savePng(stem(run.name))}>
              PNG
            </Button>
            <Button
              title="A trace for ui.perfetto.dev"
              onClick={() =>
                download(
                  `${stem(run.name)}-trace.json`,
                  'application/json',
                  JSON.stringify(
                    run.recording === null ? toChromeTrace(view.recorded.picture) : recordingTrace(run.recording),
                  ),
                )
              }
            >
              Perfetto
            </Button>
          </>
        )}
      </div>
      {problem === null ? null : (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {run === null || view === null ? (
        <p class="hint">
          Open a recording, plan, schedule or profiler trace; select one trace per rank together. Files stay on your
          machine.
        </p>
      ) : (
        <>
          <p class="diagnosis">
            <strong>{run.name}</strong>: step {run.stepNumber(at)} took {quantity(view.recorded.makespan)} ms
            {view.planned === null ? '' : `, planned with the mean durations ${quantity(view.planned.makespan)} ms`},
            idle {percent(view.recorded.picture.bubble?.makespan ?? 0)}.{' '}
            {differences === null ? '' : sayDifferences(differences, view, 'on average')} {run.note ?? ''}
            {selected === null ? '' : ` ${sayOne(view, selected) ?? ''}`}
          </p>
          <RunTimeline
            view={view}
            plan="mean durations"
            overlay={overlay}
            theme={props.theme}
            height={props.height}
            label={`Recorded step ${run.stepNumber(at)}`}
            onSelect={select}
          />
          <Legend groups={[{ key: 'run', title: '', lanes: view.recorded }]} />
        </>
      )}
    </div>
  );
}

/** The schedule in a file; null where it is something else. */
function asSchedule({ name, text }: GivenFile): Schedule | null {
  if (/\.json$/i.test(name) && !text.slice(0, 2000).includes('pipewright-schedule')) return null;
  try {
    return readSchedule(text);
  } catch {
    return null;
  }
}

/** The name of a file without its ending. */
function stem(name: string): string {
  return (name.split(', ')[0] ?? name).replace(/\.[^.]*$/, '') || 'step';
}
