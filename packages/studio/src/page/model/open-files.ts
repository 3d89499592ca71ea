/** @file Files that were opened: the run in them, or why there is none. */
import { ScheduleError } from '@pipewright/schedule';
import { readSchedule } from './edit.ts';
import { type OpenedRun, openRun } from './recorded.ts';

/** A file by name with its text. */
export interface GivenFile {
  readonly name: string;
  readonly text: string;
}

/** What the view of files shows. */
export interface OpenedFiles {
  readonly run: OpenedRun | null;
  /** The step that is shown, counted from 0. */
  readonly at: number;
  readonly problem: string | null;
}

/** Opens a recording, or the traces of one or several ranks. */
export function openFiles(given: readonly GivenFile[]): OpenedFiles {
  if (given.length === 0) return { run: null, at: 0, problem: null };
  try {
    const run = openRun(
      given.map(({ name }) => name).join(', '),
      given.map(({ text }) => text),
    );
    run.view(0);
    return { run, at: 0, problem: null };
  } catch (error) {
    // A file from anywhere may be malformed in any way: whatever comes of it is the file's fault.
    return { run: null, at: 0, problem: (given.length === 1 ? otherProblem(given[0]!) : null) ?? textOf(error) };
  }
}

/** What is wrong with a file that is neither a recording nor a trace by its looks; null if it is one of these. */
function otherProblem({ name, text }: GivenFile): string | null {
  const first = text.trimStart().charAt(0);
  const isTable = /\.csv$/i.test(name) || (first !== '{' && first !== '[');
  if (isTable || text.slice(0, 2000).includes('pipewright-schedule')) {
    try {
      readSchedule(text);
    } catch (error) {
      return `${name}: ${textOf(error)}`;
    }
  }
  if (first === '[' ? isJson(text) : /"traceEvents"|"pipewright-recording"/.test(text)) return null;
  return `${name} is neither a recording, a plan, a schedule nor a trace.`;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function textOf(error: unknown): string {
  const why = error instanceof Error ? error.message : String(error);
  return error instanceof ScheduleError ? why : `This file cannot be read: ${why}`;
}
