/** @file Files: recordings, traces and schedules that were saved. */
import { meanCosts, percent, quantity, recordingTrace, renderSvg, toChromeTrace } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { differencesOf, sayDifferences, sayOne } from '../model/differences.ts';
import type { OpenedFiles } from '../model/open-files.ts';
import type { OpenedRun } from '../model/recorded.ts';
import type { CostSettings } from '../model/settings.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { Button, download } from './controls.tsx';
import { Legend } from './legend.tsx';
import { RunTimeline } from './run-timeline.tsx';
import { savePng } from './save-png.ts';
import type { ThemeName } from './theme.ts';

/** The view. */
export function Files(props: {
  readonly theme: ThemeName;
  readonly height: number;
  /** What was opened; it outlives this view. */
  readonly opened: OpenedFiles;
  readonly onOpened: (opened: OpenedFiles) => void;
  /** Files that were chosen. */
  readonly onFiles: (files: readonly File[]) => void;
  readonly onCosts: (costs: Pick<CostSettings, 'F' | 'I' | 'W'> & Partial<CostSettings>, run: OpenedRun) => void;
}): JSX.Element {
  const { run, at, problem } = props.opened;
  const [selected, select] = useState<GroupCell | null>(null);
  useEffect(() => select(null), [run]);
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
            accept=".json,.csv,.txt,.gz"
            aria-label="Recordings, traces or schedules to open"
            onClick={(event) => {
              event.currentTarget.value = ''; // the same file can be opened again after it was changed
            }}
            onChange={(event) => props.onFiles([...(event.currentTarget.files ?? [])])}
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
        <div class="drop">
          <p>
            <strong>Drop files anywhere on this page</strong>, or open them above.
          </p>
          <p class="hint">
            A recording, a plan, a schedule as CSV or JSON, or profiler traces, one per rank together. Files stay on
            your machine.
          </p>
        </div>
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

/** The name of a file without its ending. */
function stem(name: string): string {
  return (name.split(', ')[0] ?? name).replace(/\.[^.]*$/, '') || 'step';
}
