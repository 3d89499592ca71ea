/**
 * @file Runs a program of the set-up (pip, cmake) as a process group of its own, so that all of it ends with us; after
 * a kill -9 of ours, the next run ends what was left over before it starts the same work again.
 */
import { spawn } from 'node:child_process';
import { appendFileSync, existsSync, readFileSync, rmSync } from 'node:fs';
import { constants } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { isAlive, startOf } from './lock.ts';

export interface ChildRun {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly cwd?: string;
  /** Where the running process is noted, for `endLeftover`. */
  readonly pidFile: string;
  /** Every line of output is added to this file. */
  readonly logFile?: string;
  readonly onLine?: (line: string) => void;
}

export interface ChildResult {
  readonly status: number;
  /** All that it printed. */
  readonly output: string;
}

/** What ends us from outside and can be heard. */
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** The child notes itself before it starts, so there is no moment in which we could die and leave it unknown. */
const NOTE_AND_RUN = '{ cat /proc/$$/stat 2>/dev/null || echo $$; } >"$0" && exec "$@"';

export async function runChild(run: ChildRun): Promise<ChildResult> {
  const child = spawn('/bin/sh', ['-c', NOTE_AND_RUN, run.pidFile, run.command, ...run.args], {
    env: run.env,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(run.cwd === undefined ? {} : { cwd: run.cwd }),
  });
  const pid = child.pid;
  const endGroup = (): void => killGroup(pid, 'SIGKILL');
  const onSignal = (signal: NodeJS.Signals): void => {
    endGroup();
    process.exit(128 + constants.signals[signal]);
  };
  process.once('exit', endGroup);
  for (const signal of SIGNALS) process.once(signal, onSignal);

  let output = '';
  const take = (line: string): void => {
    output += `${line}\n`;
    if (run.logFile !== undefined) appendFileSync(run.logFile, `${line}\n`);
    run.onLine?.(line);
  };
  const ends = [splitLines(child.stdout, take), splitLines(child.stderr, take)];
  try {
    const status = await new Promise<number>((resolve) => {
      child.once('error', (error) => {
        take(String(error));
        resolve(127);
      });
      child.once('close', (code) => resolve(code ?? 1));
    });
    for (const end of ends) end();
    return { status, output };
  } finally {
    process.off('exit', endGroup);
    for (const signal of SIGNALS) process.off(signal, onSignal);
    rmSync(run.pidFile, { force: true });
  }
}

/** Ends what an earlier, killed run of ours left running. Call it under the lock that guards the work. */
export async function endLeftover(pidFile: string): Promise<boolean> {
  if (!existsSync(pidFile)) return false;
  const { pid, started } = readPid(pidFile);
  const alive = pid > 0 && isAlive(pid, started);
  if (alive) killGroup(pid, 'SIGKILL');
  for (let i = 0; alive && i < 100 && isAlive(pid, started); i++) await sleep(20);
  rmSync(pidFile, { force: true });
  return alive;
}

function readPid(pidFile: string): { pid: number; started: string } {
  try {
    const text = readFileSync(pidFile, 'utf8');
    return { pid: Number.parseInt(text, 10) || 0, started: startOf(text) };
  } catch {
    return { pid: 0, started: '' };
  }
}

function killGroup(pid: number | undefined, signal: NodeJS.Signals): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, signal);
  } catch {
    // It has ended by itself.
  }
}

/** Calls `take` per line; a carriage return ends a line too, since progress bars use it. Returns the final flush. */
function splitLines(stream: NodeJS.ReadableStream, take: (line: string) => void): () => void {
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text: string) => {
    const lines = (rest + text).split(/\r\n|\n|\r/);
    rest = lines.pop() ?? '';
    for (const line of lines) take(line);
  });
  return () => {
    if (rest !== '') take(rest);
    rest = '';
  };
}
