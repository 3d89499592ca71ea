/** @file Files that were opened: the run in them, or why there is none. */
import { type Schedule, ScheduleError } from '@pipewright/schedule';
import { readSchedule } from './edit.ts';
import { type OpenedPlan, openPlan } from './plan.ts';
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

/** Characters from which on a schedule is read beside the page. */
const manyCharacters = 100_000;

/** The file, if it is one that looks like a schedule and takes long to read. */
export function largeSchedule(given: readonly GivenFile[]): GivenFile | null {
  const [file] = given;
  if (given.length !== 1 || file === undefined || file.text.length < manyCharacters) return null;
  if (isTable(file)) return file;
  return saysSchedule(file.text) && !/"cutBefore"\s*:/.test(file.text) ? file : null; // plans may hold a schedule
}

/** What was found in files: a plan, a schedule, or else a run or the reason why there is none. */
export type Found = { readonly plan: OpenedPlan } | { readonly schedule: Schedule } | { readonly opened: OpenedFiles };

/** Finds out what files are; a plan or a schedule is a file of its own. */
export function findIn(given: readonly GivenFile[]): Found {
  const single = given.map((file) => planOrSchedule(file));
  const [first] = single;
  if (single.length === 1 && first) return first;
  if (single.some((found) => found !== null)) {
    const problem = 'Open one plan or schedule at a time; several files together are the traces of several ranks.';
    return { opened: { run: null, at: 0, problem } };
  }
  return { opened: openFiles(given) };
}

function planOrSchedule({ name, text }: GivenFile): Found | null {
  try {
    const plan = openPlan(name, text);
    if (plan !== null) return { plan };
  } catch (error) {
    return { opened: { run: null, at: 0, problem: textOf(error) } };
  }
  if (/\.json$/i.test(name) && !saysSchedule(text)) return null;
  try {
    return { schedule: readSchedule(text) };
  } catch {
    return null;
  }
}

/** What is wrong with a file that is neither a recording nor a trace by its looks; null if it is one of these. */
function otherProblem({ name, text }: GivenFile): string | null {
  const first = firstOf(text);
  if (isTable({ name, text }) || saysSchedule(text)) {
    try {
      readSchedule(text);
    } catch (error) {
      return `${name}: ${textOf(error)}`;
    }
  }
  if (first === '[' ? isJson(text) : /"traceEvents"|"pipewright-recording"/.test(text)) return null;
  return `${name} is neither a recording, a plan, a schedule nor a trace.`;
}

function isTable({ name, text }: GivenFile): boolean {
  return /\.csv$/i.test(name) || !['{', '['].includes(firstOf(text));
}

/** The first character that is not blank. */
function firstOf(text: string): string {
  return /\S/.exec(text)?.[0] ?? '';
}

/** Whether JSON says that it is a schedule: by the first format in it, because recordings hold a schedule. */
export function saysSchedule(text: string): boolean {
  return /"format"\s*:\s*"(pipewright-\w+)"/.exec(text.slice(0, 2000))?.[1] === 'pipewright-schedule';
}

/** A message of the library without the name of the function, which a reader of the page has not called. */
export function withoutCaller(message: string): string {
  return message.replace(/^(?:parseCsv|parseAction|Schedule\.from(?:JSON)?|readPlan|readRecording): /, '');
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
  const why = error instanceof Error ? withoutCaller(error.message) : String(error);
  return error instanceof ScheduleError ? why : `This file cannot be read: ${why}`;
}
