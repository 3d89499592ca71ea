/** @file Live: a job while it runs. */
import { type LiveLine, LiveRunReader, parseLiveLine, quantity } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { differencesOf, sayDifferences, sayOne } from '../model/differences.ts';
import {
  actionAt,
  isEvaluating,
  type LiveState,
  momentOf,
  picturedSlot,
  placesOf,
  sayCalm,
  sayConnection,
  sayCount,
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
  /** What the timeline shows: what is done now, the last that all ranks have ended, or the last training step among those. */
  const [chosen, choose] = useState<'now' | 'finished' | 'training'>('now');
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
      const { schedule, steps, evaluations, evaluates, status, tokensPerStep } = reader.current;
      const heardAgo = Date.now() - heard.current;
      setConnection(sayConnection(status, props.lines === null ? connected.current : null, heardAgo));
      if (paused) return;
      const recording = changed.current ? reader.current.recording('training') : null;
      const evaluation = changed.current ? reader.current.recording('evaluation') : null;
      setState((before) => ({
        schedule,
        steps: changed.current ? [...steps] : (before?.steps ?? []),
        evaluations: changed.current ? [...evaluations] : (before?.evaluations ?? []),
        evaluatedLast: evaluates,
        status,
        unfinished: before?.status === status ? before.unfinished : unfinishedStep(schedule, status),
        tokensPerStep,
        recording: recording ?? before?.recording ?? null,
        evaluation: evaluation ?? before?.evaluation ?? null,
        now: status === null ? 0 : momentOf(status, props.lines === null ? heardAgo : null),
      }));
      changed.current = false;
    }, refreshMs);
    return () => clearInterval(timer);
  }, [paused]);

  const evaluates = state !== null && isEvaluating(state);
  const picture = chosen === 'training' && !evaluates ? 'now' : chosen;
  const [trained, evaluated] = [state?.recording ?? null, state?.evaluation ?? null];
  const recording = evaluates && picture !== 'training' ? (evaluated ?? trained) : (trained ?? evaluated);
  // The plan is one of training.
  const plan = recording?.steps.at(-1)?.training === true ? props.plan : null;
  const whole = useMemo(
    (): RecordedView | null =>
      recording === null ? null : openRecording('live', recording, plan?.plan ?? null).view(recording.steps.length - 1),
    [recording, plan],
  );
  const differences = useMemo(() => (whole === null ? null : differencesOf(whole)), [whole]);
  const unfinished = state?.unfinished ?? null;
  const shown = picture !== 'now' && whole !== null ? null : unfinished;
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
    const isNow = recording === (evaluates ? evaluated : trained);
    const drawn = whole?.recorded.picture.schedule ?? null;
    const cells = new Map(
      places.flatMap(({ rank, slot }) => {
        if (!isNow || slot === null || drawn === null) return [];
        const at = picturedSlot(drawn, state?.schedule ?? null, rank, slot);
        return at === null ? [] : [[rank, { rank, slot: at }] as const];
      }),
    );
    const marks = [...cells.values()].map((cell) => ({ group: 0, ...cell }));
    // Who waits for whom, from where the one stands to where the other does.
    const arrows = places.flatMap(({ rank, waitingFor }) => {
      const [from, to] = [typeof waitingFor === 'number' ? cells.get(waitingFor) : undefined, cells.get(rank)];
      return from === undefined || to === undefined ? [] : [{ group: 0, from, to, warn: true }];
    });
    const { longer = [], late = [] } = differences ?? {};
    return { selected, hovered: null, arrows, marks, longer, late, critical, drop: null, failed };
  }, [places, selected, differences, shown, recording, evaluates]);
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
  // Of a job that does not train, the evaluations.
  const hasTrained = steps.length > 0 || state?.evaluations.length === 0;
  const recent = (hasTrained ? steps : (state?.evaluations ?? [])).slice(-500);
  const numbers = recent.map(({ step }) => step);
  const seconds = recent.map(({ begin, end }) => (end - begin) / 1000);
  const said = state === null ? [] : sayLive({ ...state, recording }, plan === null ? null : differences);
  const show = (which: 'finished' | 'training'): void => {
    choose(picture === which ? 'now' : which);
    select(null);
  };
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
          {connection}, {state === null ? 'no step yet' : sayCount(state)}
        </span>
        {props.lines !== null || (state?.status?.ended && !paused) ? null : (
          <Button pressed={paused} onClick={() => setPaused(!paused)} title="Freezes the view, not the run">
            {paused ? 'go on' : 'pause'}
          </Button>
        )}
        {unfinished === null || whole === null ? null : (
          <Button
            pressed={picture === 'finished'}
            onClick={() => show('finished')}
            title="Shows the last step that all ranks have ended, in the place of the one under way"
          >
            last finished {evaluates && evaluated !== null ? 'evaluation' : 'step'}
          </Button>
        )}
        {!evaluates || trained === null || (evaluated === null && unfinished === null) ? null : (
          <Button
            pressed={picture === 'training'}
            onClick={() => show('training')}
            title="Shows the last training step, in the place of an evaluation"
          >
            last training step
          </Button>
        )}
      </div>
      <div class={state?.status?.ended?.failed === true ? 'problem' : 'diagnosis'} aria-live="polite">
        {said.length === 0 ? (
          <p>{state === null ? 'Waiting for the first step.' : sayCalm({ ...state, recording }, plan !== null)}</p>
        ) : (
          said.map((line) => (
            <p key={line}>
              <strong>{line}</strong>
            </p>
          ))
        )}
        {(shown === null || !state?.status?.ended) && whole?.planned && differences ? (
          <p>
            {sayLastStep(recording!, plan === null ? null : { name: plan.name, ms: 1e3 * plan.plan.predicted.step })}{' '}
            {sayDifferences(differences, whole, plan === null ? 'on average' : 'planned')}
          </p>
        ) : null}
        {one === null ? null : <p class="chosen">{one}</p>}
      </div>
      <div class="curves">
        <Curve
          title={hasTrained ? 'step time, s' : 'time of an evaluation, s'}
          steps={numbers}
          values={seconds}
          theme={props.theme}
        />
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
            plan={plan === null ? 'mean of the last steps' : 'planned'}
            isUnfinished={shown !== null}
            overlay={overlay}
            theme={props.theme}
            height={Math.max(200, props.height - 200)}
            label={
              shown === null
                ? `Last recorded ${recording?.steps.at(-1)?.training === false ? 'evaluation' : 'step'}; the outlined action is where each rank is now`
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
                  <td>{place.evaluates === true ? `evaluation ${place.step}` : (place.step ?? '')}</td>
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
