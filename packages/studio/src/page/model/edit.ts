/** @file Editing a schedule: moves and deletions of cells, text pasted as CSV or JSON, undo; and what the rules say of the result. */
import {
  buildSchedule,
  formatCsv,
  parseAction,
  parseCsv,
  pictureOf,
  pictureOfRows,
  Schedule,
  ScheduleError,
  type Simulation,
  simulate,
  type Violation,
  validate,
} from '@pipewright/schedule';
import { costsOf } from './explore.ts';
import { countActions } from './extent.ts';
import { type Lanes, lanesOf } from './lanes.ts';
import type { CostSettings, Settings } from './settings.ts';

/** A schedule under edit, judged. */
export interface Judged {
  readonly schedule: Schedule;
  readonly violations: readonly Violation[];
  /** Times, where every rank can go on to its end. */
  readonly simulation: Simulation | null;
  /** Why there are no times. */
  readonly problem: string | null;
  /** What is drawn: actions at their times, or without times by their slots. */
  readonly lanes: Lanes;
}

/** One state of a schedule under edit, and what led to it. */
interface State {
  readonly schedule: Schedule;
  readonly what: string;
}

/** Largest schedule that is edited, in cells: every change is checked and simulated at once. */
export const mostEdited = 500_000;

/** The most violations that are listed. */
export const mostListed = 50;

/** How many rules are broken, in words. */
export function sayViolations({ violations }: Judged): string {
  if (violations.length === 0) return 'The schedule is valid.';
  if (violations.length > mostListed)
    return `More than ${mostListed} rules are broken; the first ${mostListed} are listed.`;
  return violations.length === 1 ? '1 rule is broken.' : `${violations.length} rules are broken.`;
}

/** What the rules and the simulator say of a schedule: one violation more than is listed tells that there are more. */
export function judge(schedule: Schedule, costs: CostSettings): Judged {
  const known = judgements.get(schedule);
  if (known?.costs === costs) return known.judged;
  const violations = validate(schedule, { limit: mostListed + 1 });
  try {
    const simulation = simulate(schedule, costsOf(costs, schedule.stages));
    return { schedule, violations, simulation, problem: null, lanes: lanesOf(pictureOf(simulation)) };
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    return { schedule, violations, simulation: null, problem: error.message, lanes: lanesOf(pictureOfRows(schedule)) };
  }
}

/** What is known of schedules that were judged elsewhere, with the costs that it holds for. */
const judgements = new WeakMap<Schedule, { readonly costs: CostSettings; readonly judged: Judged }>();

/** Keeps what the worker has said of a schedule. */
export function keepJudged(judged: Judged, costs: CostSettings): void {
  judgements.set(judged.schedule, { costs, judged });
}

/** Reads a schedule from text: our JSON, or CSV of ours or of PyTorch. */
export function readSchedule(text: string): Schedule {
  const trimmed = text.trim();
  if (trimmed === '') throw new ScheduleError('BAD_CSV', 'The text is empty; paste a schedule as CSV or JSON');
  const count = countCells(trimmed);
  if (count > mostEdited)
    throw new ScheduleError(
      'BAD_SCHEDULE',
      `About ${count.toLocaleString('en')} cells are too many to edit here; at most ${mostEdited.toLocaleString('en')}`,
    );
  return trimmed.startsWith('{') ? Schedule.fromJSON(trimmed) : parseCsv(text);
}

/** About how many cells a text has, without reading it: by its commas and lines. */
function countCells(text: string): number {
  let count = 1;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === 44 || code === 10) count++;
  }
  return count;
}

/** A history of one schedule: every change makes a new state, and states can be gone back to. */
export class Editor {
  private readonly states: State[] = [];
  private position = 0;

  constructor(schedule: Schedule, what = 'opened') {
    this.states.push({ schedule, what });
  }

  /** Goes on with another schedule; undo comes back to this one. */
  open(schedule: Schedule, how: 'pasted' | 'opened' = 'pasted'): boolean {
    this.push(schedule, `${schedule.name} ${how}`);
    return true;
  }

  /** The schedule as it is now. */
  get schedule(): Schedule {
    return this.states[this.position]!.schedule;
  }

  get canUndo(): boolean {
    return this.position > 0;
  }

  get canRedo(): boolean {
    return this.position + 1 < this.states.length;
  }

  /** What the last change was. */
  get lastChange(): string {
    return this.states[this.position]!.what;
  }

  /** Moves a cell of a row to before another position of the same row; no change where it stands there already. */
  move(rank: number, from: number, to: number): boolean {
    const row = this.schedule.rows[rank];
    if (row === undefined || from < 0 || from >= row.length || to < 0 || to > row.length) return false;
    if (to === from || to === from + 1) return false;
    const next = Int32Array.from(row);
    const at = to > from ? to - 1 : to;
    if (at > from) next.copyWithin(from, from + 1, to);
    else next.copyWithin(to + 1, to, from);
    next[at] = row[from]!;
    this.change(rank, next, `${this.textAt(rank, from)} moved on rank ${rank}`);
    return true;
  }

  /** Deletes a cell. */
  remove(rank: number, slot: number): boolean {
    const row = this.schedule.rows[rank];
    if (row?.[slot] === undefined) return false;
    const next = row.filter((_, i) => i !== slot);
    this.change(rank, next, `${this.textAt(rank, slot)} deleted on rank ${rank}`);
    return true;
  }

  /** Puts an action before a position of a row; refuses text that is no action. */
  insert(rank: number, slot: number, text: string): boolean {
    const { schedule } = this;
    const row = schedule.rows[rank];
    if (row === undefined || slot < 0 || slot > row.length) return false;
    if (text !== '') parseAction(text);
    const { ranks, stages, microbatches, stageToRank, edges } = schedule;
    const order = schedule.rows.map((words, at) => {
      const texts = Array.from(words, (word) => (word === 0 ? '' : schedule.format(word)));
      return at === rank ? texts.toSpliced(slot, 0, text) : texts;
    });
    const shape = { ranks, stages, microbatches, stageToRank, ...(edges === null ? {} : { edges }) };
    const added = Schedule.from({ name: editedName(schedule), ...shape, order });
    this.push(added, `${text === '' ? 'a bubble' : text} added on rank ${rank}`);
    return true;
  }

  undo(): boolean {
    if (!this.canUndo) return false;
    this.position--;
    return true;
  }

  redo(): boolean {
    if (!this.canRedo) return false;
    this.position++;
    return true;
  }

  /** The schedule as CSV with a line that names it. */
  toCsv(): string {
    return formatCsv(this.schedule, { format: 'pipewright' });
  }

  private textAt(rank: number, slot: number): string {
    const word = this.schedule.rows[rank]![slot]!;
    return word === 0 ? 'a bubble' : this.schedule.format(word);
  }

  private change(rank: number, row: Int32Array, what: string): void {
    const { schedule } = this;
    this.push(schedule.with({ name: editedName(schedule), rows: schedule.rows.with(rank, row) }), what);
  }

  private push(schedule: Schedule, what: string): void {
    this.states.length = this.position + 1;
    this.states.push({ schedule, what });
    this.position++;
  }
}

function editedName({ name }: Schedule): string {
  return `${name.replace(/ \(edited\)$/, '')} (edited)`;
}

/** What is under edit while other views are shown; `shape` is that of the settings it was built from, null if it was handed over. */
export interface Desk {
  readonly editor: Editor;
  readonly shape: string | null;
}

/** The desk for these settings: as it was, unless nothing was changed on it and the settings ask for another schedule. */
export function deskFor(before: Desk | null, settings: Settings): Desk {
  const { schedule, ranks, stagesPerRank, microbatches } = settings;
  const shape = [schedule, ranks, stagesPerRank, microbatches].join();
  const isTouched = before !== null && (before.shape === null || before.editor.canUndo || before.editor.canRedo);
  if (before !== null && (isTouched || before.shape === shape)) return before;
  return { editor: startOf(settings), shape };
}

/** Puts a schedule on the desk; undo comes back to what was changed before. */
export function putOnDesk(before: Desk | null, schedule: Schedule): Desk {
  if (before === null || (before.shape !== null && !before.editor.canUndo))
    return { editor: new Editor(schedule), shape: null };
  before.editor.open(schedule, 'opened');
  return { ...before, shape: null };
}

/** An editor with the schedule of the settings; with a small one where that cannot be built or has too many actions. */
function startOf(settings: Settings): Editor {
  const { schedule: name, ranks, stagesPerRank, microbatches } = settings;
  const instead = (why: string): Editor =>
    new Editor(buildSchedule('1F1B', { ranks: 4, microbatches: 8 }), `opened in place of ${name}, ${why}`);
  try {
    const count = countActions(name, { ...settings, lowered: false });
    if (count > mostEdited) return instead(`whose ${count.toLocaleString('en')} actions are too many to edit here`);
    return new Editor(buildSchedule(name, { ranks, stagesPerRank, microbatches }));
  } catch (error) {
    if (!(error instanceof ScheduleError)) throw error;
    return instead('which cannot be built in this shape');
  }
}
