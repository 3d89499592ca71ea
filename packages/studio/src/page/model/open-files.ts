/** @file Files that were opened: the run in them, or why there is none. */
import { ScheduleError } from '@pipewright/schedule';
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
    const why = error instanceof Error ? error.message : String(error);
    return { run: null, at: 0, problem: error instanceof ScheduleError ? why : `This file cannot be read: ${why}` };
  }
}
