/** @file Edit: change a schedule by hand and see at once what the rules and the clock say. */
import { formatAction, percent, ScheduleError } from '@pipewright/schedule';
import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { type Editor, judge, mostListed, readSchedule, sayViolations } from '../model/edit.ts';
import { withoutCaller } from '../model/open-files.ts';
import type { Settings } from '../model/settings.ts';
import { showMemory, showTime } from '../model/units.ts';
import type { Arrow, GroupCell, Overlay } from '../timeline/timeline-canvas.ts';
import { Button, download } from './controls.tsx';
import { Legend } from './legend.tsx';
import { stepKey } from './step-key.ts';
import type { ThemeName } from './theme.ts';
import { Timeline } from './timeline.tsx';

/** Whether what has the focus takes text, which has an undo of its own. */
function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLTextAreaElement || (target instanceof HTMLInputElement && target.type === 'text');
}

/** The view. */
export function Edit(props: {
  readonly settings: Settings;
  readonly theme: ThemeName;
  readonly height: number;
  /** What is edited; it outlives this view. */
  readonly editor: Editor;
}): JSX.Element {
  const { settings, editor } = props;
  const [version, setVersion] = useState(0);
  const [chosen, select] = useState<GroupCell | null>(null);
  const [hovered, hover] = useState<GroupCell | null>(null);
  const [drop, setDrop] = useState<Overlay['drop']>(null);
  const [pasted, setPasted] = useState('');
  const [added, setAdded] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const changed = (did: boolean): void => {
    if (!did) return;
    setProblem(null);
    setVersion((before) => before + 1);
  };
  const attempt = (work: () => boolean): void => {
    try {
      changed(work());
    } catch (error) {
      if (!(error instanceof ScheduleError)) throw error;
      setProblem(withoutCaller(error.message));
    }
  };
  const judged = useMemo(() => judge(editor.schedule, settings.costs), [editor, version, settings.costs]);
  // A change may have taken away the action, or its rank.
  const isThere = chosen !== null && (judged.schedule.rows[chosen.rank]?.[chosen.slot] ?? 0) !== 0;
  const selected = isThere ? chosen : null;
  const { lanes } = judged;
  const groups = useMemo(() => [{ key: 'edit', title: judged.schedule.name, lanes }], [lanes]);
  const overlay = useMemo((): Overlay => {
    const marks = judged.violations.flatMap(({ rank, slot, cycle }) => [
      ...(rank === null || slot === null ? [] : [{ group: 0, rank, slot }]),
      ...(cycle ?? []).map((place) => ({ group: 0, rank: place.rank, slot: place.slot })),
    ]);
    const arrows: Arrow[] = judged.violations.flatMap(({ cycle }) =>
      (cycle ?? []).flatMap(({ rank, slot, waitsFor }) =>
        waitsFor.slot === null
          ? []
          : [
              {
                group: 0,
                from: { rank: waitsFor.rank, slot: waitsFor.slot },
                to: { rank, slot },
                warn: true,
                betweenMiddles: true,
              },
            ],
      ),
    );
    return { selected, hovered, arrows, marks, critical: [], drop };
  }, [judged, selected, hovered, drop]);
  const remove = (): void => {
    if (selected === null) return;
    const { rank, slot } = selected;
    const rest = (judged.schedule.rows[rank]?.length ?? 0) - 1;
    changed(editor.remove(rank, slot));
    select(rest === 0 ? null : { ...selected, slot: Math.min(slot, rest - 1) }); // the next one: keys go on from there
  };
  const drag = (cell: GroupCell, time: number, done: boolean): void => {
    const lane = lanes.lanes[cell.rank];
    if (lane === undefined) return;
    const { start, end, slot, count } = lane.main;
    let at = 0;
    while (at < count && (start[at]! + end[at]!) / 2 < time) at++;
    const to = at < count ? slot[at]! : (judged.schedule.rows[cell.rank]?.length ?? 0);
    setDrop(done ? null : { group: 0, rank: cell.rank, time: at < count ? start[at]! : (end[count - 1] ?? 0) });
    if (done && editor.move(cell.rank, cell.slot, to)) {
      select(null);
      changed(true);
    }
  };
  const key = (event: KeyboardEvent): boolean => {
    if (event.key === 'Delete' || event.key === 'Backspace') remove();
    else if (event.altKey && selected !== null && event.key === 'ArrowLeft') {
      if (editor.move(selected.rank, selected.slot, selected.slot - 1))
        select({ ...selected, slot: selected.slot - 1 });
      changed(true);
    } else if (event.altKey && selected !== null && event.key === 'ArrowRight') {
      if (editor.move(selected.rank, selected.slot, selected.slot + 2))
        select({ ...selected, slot: selected.slot + 1 });
      changed(true);
    } else {
      const next = stepKey(event, selected, judged.schedule, null);
      if (next === undefined) return false;
      select(next);
    }
    return true;
  };
  // Wherever the focus is: after a button was used, it is not in the timeline.
  useEffect(() => {
    const undo = (event: KeyboardEvent): void => {
      if (!(event.ctrlKey || event.metaKey) || isTyping(event.target)) return;
      const name = event.key.toLowerCase();
      if (name !== 'z' && name !== 'y') return;
      event.preventDefault();
      changed(name === 'y' || event.shiftKey ? editor.redo() : editor.undo());
    };
    addEventListener('keydown', undo);
    return () => removeEventListener('keydown', undo);
  });
  const selectedAction = selected === null ? null : judged.schedule.at(selected.rank, selected.slot);
  const { simulation, violations } = judged;
  const peak = simulation === null ? 0 : Math.max(0, ...simulation.peakMemory);
  return (
    <div class="view">
      <div class="bar" role="group" aria-label="Editing">
        <Button disabled={!editor.canUndo} onClick={() => changed(editor.undo())} title="Ctrl-Z">
          undo
        </Button>
        <Button disabled={!editor.canRedo} onClick={() => changed(editor.redo())} title="Ctrl-Shift-Z">
          redo
        </Button>
        <Button disabled={selected === null} onClick={remove} title="Delete the selected action">
          delete
        </Button>
        <label class="field">
          add
          <input
            type="text"
            size={8}
            placeholder="2F0"
            value={added}
            aria-label="Action to add before the selected one"
            onInput={(event) => setAdded(event.currentTarget.value)}
          />
        </label>
        <Button
          disabled={selected === null}
          title="Add the action before the selected one"
          onClick={() => attempt(() => selected !== null && editor.insert(selected.rank, selected.slot, added.trim()))}
        >
          insert
        </Button>
        <span class="spring" />
        <Button
          title="A file for --schedule and for PyTorch"
          onClick={() => download(`${judged.schedule.name}.csv`, 'text/csv', editor.toCsv())}
        >
          save CSV
        </Button>
        <Button
          title="A file for --schedule"
          onClick={() => download(`${judged.schedule.name}.json`, 'application/json', JSON.stringify(judged.schedule))}
        >
          save JSON
        </Button>
      </div>
      {problem === null ? null : (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <p class={violations.length === 0 ? 'diagnosis' : 'problem'} aria-live="polite">
        <strong>
          {judged.schedule.name}: {sayViolations(judged)}
        </strong>{' '}
        {simulation === null
          ? violations.length === 0
            ? `${judged.problem}. `
            : 'No timing: the schedule cannot run to completion. '
          : `Step time ${showTime(simulation.makespan)}, ${percent(simulation.bubble.makespan)} idle, peak ${showMemory(peak)}. `}
        Last change: {editor.lastChange}.
      </p>
      <div class="stage">
        <Timeline
          groups={groups}
          overlay={overlay}
          theme={props.theme}
          memory={lanes.picture.memory}
          limit={settings.limit}
          memoryText={showMemory}
          height={props.height}
          label="Schedule under edit"
          onHover={hover}
          onSelect={select}
          onKey={key}
          onDrag={drag}
        />
        <section class="details" aria-label="Broken rules">
          <h2>rules</h2>
          <ul class="violations">
            {violations.slice(0, mostListed).map((one, i) => (
              <li key={i}>
                <Button
                  disabled={one.rank === null || one.slot === null}
                  onClick={() =>
                    one.rank !== null && one.slot !== null && select({ group: 0, rank: one.rank, slot: one.slot })
                  }
                >
                  {one.rule}
                </Button>{' '}
                {one.explanation}
              </li>
            ))}
            {violations.length === 0 ? <li>none is broken</li> : null}
          </ul>
          <p aria-live="polite">
            {selected === null || selectedAction === null
              ? ''
              : `selected: ${formatAction(selectedAction)} on rank ${selected.rank}, slot ${selected.slot}`}
          </p>
          <p class="hint">Drag an action along its row; Alt with an arrow moves the selected one; Delete removes it.</p>
        </section>
      </div>
      <Legend groups={groups} />
      <details class="paste">
        <summary>Paste a schedule</summary>
        <textarea
          rows={6}
          aria-label="Schedule as CSV or JSON"
          placeholder={'0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1'}
          value={pasted}
          onInput={(event) => setPasted(event.currentTarget.value)}
        />
        <Button
          onClick={() =>
            attempt(() => {
              const read = readSchedule(pasted);
              select(null);
              return editor.open(read);
            })
          }
        >
          open
        </Button>
      </details>
    </div>
  );
}
