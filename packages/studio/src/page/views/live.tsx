/** @file Live: a job while it runs. */
import { type LiveLine, LiveRunReader, parseLiveLine, quantity } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { differencesOf, sayDifferences, sayOne } from '../model/differences.ts';
import {
  actionAt,
  type LiveState,
  momentOf,
  placesOf,
  sayCalm,
  sayConnection,
  sayLastStep,
  sayLive,
} from '../model/live.ts';
import type { OpenedPlan } from '../model/plan.ts';
import { openRecording, type RecordedView } from '../model/recorded.ts';
import { sayUnfinishedAction, unfinishedStep } from '../model/unfinished.ts';
import type { GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { Button } from './controls.tsx';
import { Curve } from './curves.tsx';
import { Legend } from './legend.tsx';
import { RunTimeline } from './run-timeline.tsx';
import type { ThemeName } from './theme.ts';

/** How often the page shows what has come, in milliseconds. */
const refreshMs = 250;
/** Steps whose times are kept: without a plan, their mean is what the last one is held against. */
const timedSteps = 10;

/** The view of a job that a server tells of, or of one that the page was written with. */
export function Live(props: {
  /** The address that tells what happens; null where the page was not served by a job. */
  readonly events: string | null;
  /** What the job had told when the page was written; null where it is served. */
  readonly lines: readonly string[] | null;
  /** The plan that the run follows; null without one. */
  readonly plan: OpenedPlan | null;
  readonly theme: ThemeName;
  readonly height: number;
}): JSX.Element {
  const reader = useRef(new LiveRunReader(2000, timedSteps));
  const [state, setState] = useState<LiveState | null>(null);
  const [paused, setPaused] = useState(false);
  const [connection, setConnection] = useState(() => sayConnection(null, props.lines === null ? false : null, 0));
  const [selected, select] = useState<GroupCell | null>(null);
  const [showsWhole, setShowsWhole] = useState(false);
  const changed = useRef(false);
  const connected = useRef(false);
  const heard = useRef(0);
  const take = (text: string): void => {
    const at = text.indexOf(' ');
    const line: LiveLine | null = parseLiveLine(text.slice(at + 1));
    if (line === null) return;
    if (line.kind === 'status') heard.current = Date.now();
    reader.current.add(Number(text.slice(0, at)), line);
    changed.current = true;
  };
  useEffect(() => props.lines?.forEach(take), [props.lines]);
  useEffect(() => {
    if (props.events === null) return undefined;
    const source = new EventSource(props.events);
    source.onopen = () => {
      reader.current = new LiveRunReader(2000, timedSteps);
      connected.current = true;
    };
    source.onerror = () => {
      connected.current = false;
    };
    source.onmessage = ({ data }: MessageEvent<string>) => take(data);
    return () => source.close();
  }, [props.events]);
  useEffect(() => {
    const timer = setInterval(() => {
      const { schedule, steps, status, tokensPerStep } = reader.current;
      const heardAgo = Date.now() - heard.current;
      setConnection(sayConnection(status, props.lines === null ? connected.current : null, heardAgo));
      if (paused) return;
      const recording = changed.current ? reader.current.recording() : null;
      setState((before) => ({
        schedule,
        steps: changed.current ? [...steps] : (before?.steps ?? []),
        status,
        unfinished: before?.status === status ? before.unfinished : unfinishedStep(schedule, status),
        tokensPerStep,
        recording: recording ?? before?.recording ?? null,
        now: status === null ? 0 : momentOf(status, props.lines === null ? heardAgo : null),
      }));
      changed.current = false;
    }, refreshMs);
    return () => clearInterval(timer);
  }, [paused]);

  const recording = state?.recording ?? null;
  const whole = useMemo(
    (): RecordedView | null =>
      recording === null
        ? null
        : openRecording('live', recording, props.plan?.plan ?? null).view(recording.steps.length - 1),
    [recording, props.plan],
  );
  const differences = useMemo(() => (whole === null ? null : differencesOf(whole)), [whole]);
  const unfinished = state?.unfinished ?? null;
  const shown = showsWhole && whole !== null ? null : unfinished;
  const view = useMemo(
    (): RecordedView | null => (shown === null ? whole : { recorded: shown.lanes, planned: whole?.planned ?? null }),
    [shown, whole],
  );
  const places = useMemo(() => (state === null ? [] : placesOf(state)), [state?.status, state?.unfinished]);
  const overlay = useMemo((): Overlay => {
    const critical: GroupCell[] = [];
    const failed = places.flatMap(({ rank, state: how }) => (how === 'failed' ? [rank] : []));
    if (shown !== null) {
      const marks = shown.standings.flatMap(({ cell }) => (cell === null ? [] : [{ group: 0, ...cell }]));
      // From where the one is to the wait of the other.
      const arrows = shown.standings.flatMap(({ cell, waitingFor }) => {
        const from = shown.standings.find(({ rank }) => rank === waitingFor)?.cell;
        return cell === null || !from ? [] : [{ group: 0, from, to: cell, warn: true, betweenMiddles: true }];
      });
      return { selected, hovered: null, arrows, marks, critical, drop: null, failed };
    }
    // Where every rank is now, on the picture of the last step: it moves along its lane.
    const marks = places.flatMap(({ rank, slot }) => (slot === null ? [] : [{ group: 0, rank, slot }]));
    // Who waits for whom, from where the one stands to where the other does.
    const arrows = places.flatMap(({ rank, slot, waitingFor }) => {
      const other = places.find((place) => place.rank === waitingFor);
      if (slot === null || other === undefined || other.slot === null) return [];
      return [{ group: 0, from: { rank: other.rank, slot: other.slot }, to: { rank, slot }, warn: true }];
    });
    const { longer = [], late = [] } = differences ?? {};
    return { selected, hovered: null, arrows, marks, longer, late, critical, drop: null, failed };
  }, [places, selected, differences, shown]);
  if (props.events === null && props.lines === null)
    return (
      <div class="view">
        <p class="hint">
          This page was opened from a file or without a job. To watch one:{' '}
          <code>npx pipewright run -n 4 --studio train.ts</code>, or <code>npx pipewright studio FOLDER</code> for a job
          that was started with <code>--live FOLDER</code>.
        </p>
      </div>
    );
  const steps = state?.steps ?? [];
  const recent = steps.slice(-500);
  const numbers = recent.map(({ step }) => step);
  const seconds = recent.map(({ begin, end }) => (end - begin) / 1000);
  const said = state === null ? [] : sayLive(state, props.plan === null ? null : differences);
  const one =
    view === null || selected === null
      ? null
      : shown === null
        ? sayOne(view, selected)
        : sayUnfinishedAction(shown, selected);
  return (
    <div class="view">
      <div class="bar">
        <span role="status">
          {connection}, {steps.at(-1) === undefined ? 'no step yet' : `step ${steps.at(-1)?.step}`}
        </span>
        {props.lines !== null || (state?.status?.ended && !paused) ? null : (
          <Button pressed={paused} onClick={() => setPaused(!paused)} title="Freezes the view, not the run">
            {paused ? 'go on' : 'pause'}
          </Button>
        )}
        {unfinished === null || whole === null ? null : (
          <Button
            pressed={showsWhole}
            onClick={() => {
              setShowsWhole(!showsWhole);
              select(null);
            }}
            title="Shows the last step that all ranks have ended, in the place of the one under way"
          >
            last finished step
          </Button>
        )}
      </div>
      <div class={state?.status?.ended?.failed === true ? 'problem' : 'diagnosis'} aria-live="polite">
        {said.length === 0 ? (
          <p>{state === null ? 'Waiting for the first step.' : sayCalm(state, props.plan !== null)}</p>
        ) : (
          said.map((line) => (
            <p key={line}>
              <strong>{line}</strong>
            </p>
          ))
        )}
        {(shown === null || !state?.status?.ended) && whole?.planned && differences ? (
          <p>
            {sayLastStep(
              recording!,
              props.plan === null ? null : { name: props.plan.name, ms: 1e3 * props.plan.plan.predicted.step },
            )}{' '}
            {sayDifferences(differences, whole, props.plan === null ? 'on average' : 'planned')}
          </p>
        ) : null}
        {one === null ? null : <p class="chosen">{one}</p>}
      </div>
      <div class="curves">
        <Curve title="step time, s" steps={numbers} values={seconds} theme={props.theme} />
        <Curve title="loss" steps={numbers} values={recent.map(({ loss }) => loss)} theme={props.theme} />
        {state?.tokensPerStep ? (
          <Curve
            title="tokens/s"
            steps={numbers}
            values={seconds.map((time) => (time > 0 ? state.tokensPerStep! / time : null))}
            theme={props.theme}
          />
        ) : null}
        <Curve
          title="memory, MB"
          steps={numbers}
          values={recent.map(({ memoryBytes }) => memoryBytes / 1e6)}
          theme={props.theme}
        />
        <Curve
          title="waiting, %"
          steps={numbers}
          values={recent.map(({ waiting }) => (waiting === null ? null : waiting * 100))}
          theme={props.theme}
        />
      </div>
      {view === null ? (
        <p class="hint">No step has been recorded yet.</p>
      ) : (
        <>
          <RunTimeline
            view={view}
            plan={props.plan === null ? 'mean of the last steps' : 'planned'}
            isUnfinished={shown !== null}
            overlay={overlay}
            theme={props.theme}
            height={Math.max(200, props.height - 200)}
            label={
              shown === null
                ? 'Last recorded step; the outlined action is where each rank is now'
                : 'The step under way; the outlined action is the one that each rank has not finished'
            }
            onSelect={select}
          />
          <Legend groups={[{ key: 'live', title: '', lanes: view.recorded }]} />
        </>
      )}
      {places.length === 0 ? null : (
        <div class="scroll">
          <table class="places">
            <caption>Where every rank is</caption>
            <thead>
              <tr>
                <th>rank</th>
                <th>state</th>
                <th>step</th>
                <th>at</th>
                <th>waits for</th>
                <th>for</th>
              </tr>
            </thead>
            <tbody>
              {places.map((place) => (
                <tr key={place.rank} class={place.state === 'failed' ? 'refused' : ''}>
                  <td>{place.rank}</td>
                  <td>{place.state}</td>
                  <td>{place.step ?? ''}</td>
                  <td>
                    {place.slot === null
                      ? place.action
                      : `slot ${place.slot}: ${place.action || actionAt(state?.schedule ?? null, place.rank, place.slot)}`}
                  </td>
                  <td>
                    {place.waitingFor === null ? '' : place.waitingFor === 'all' ? 'all' : `rank ${place.waitingFor}`}
                  </td>
                  <td>
                    {state === null
                      ? ''
                      : `${quantity(Math.max(0, Math.round((state.now - place.since) / 100) / 10))} s`}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
