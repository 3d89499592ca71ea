/** @file Ranks as processes: starting, listening, ending. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { compiledUrl } from '../../base/module-url.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import { marked, type RankNotice, unmarked } from '../replacement/messages.ts';
import { startGuard } from './guard.ts';
import { failureOf, type RankFailure, silentFailure } from './rank-failure.ts';
import { LineCutter, type OutputStream } from './rank-output.ts';
import { isReport, type ProcessReport } from './report.ts';
import type { RankEvents, StartedRanks, StartOptions } from './started-ranks.ts';

/** How long after its end a process may still send output: its own children may hold the pipe open. */
const SILENCE_MS = 500;

/** Starts the ranks of this machine, each a process in a group of its own. */
export function startProcesses(options: StartOptions, events: RankEvents): StartedRanks {
  const guard = startGuard(dirname(options.board.shared as string));
  const alive = new Map<number, ChildProcess>();
  let ending = false;
  const tellGuard = (): void => guard.watch([...alive.values()].flatMap(({ pid }) => (pid === undefined ? [] : [pid])));
  const start = (local: number): ChildProcess => {
    const rank = options.first + local;
    const child = startProcess(options, local);
    alive.set(rank, child);
    tellGuard();
    listen(child, rank, events, {
      ending: () => ending,
      gone: () => {
        alive.delete(rank);
        tellGuard();
      },
    });
    return child;
  };
  const children = Array.from({ length: options.count }, (_, local) => start(local));
  const signal = (name: NodeJS.Signals): void => {
    if (name !== 'SIGSTOP' && name !== 'SIGCONT') ending = true;
    for (const child of alive.values()) signalGroup(child, name);
  };
  return {
    get pids() {
      return children.flatMap(({ pid }) => (pid === undefined ? [] : [pid]));
    },
    stopped: () => new Set([...alive].filter(([, { pid }]) => isStopped(pid)).map(([rank]) => rank)),
    signal,
    kill: () => signal('SIGKILL'),
    killRank: (rank) => {
      const child = alive.get(rank);
      if (child !== undefined) signalGroup(child, 'SIGKILL');
    },
    restart: (rank) => {
      children[rank - options.first] = start(rank - options.first);
    },
    tell: (rank, order) => {
      const child = alive.get(rank);
      if (child?.connected === true) child.send(marked(order), () => undefined);
    },
    interrupt: (generation) => options.board.setGeneration(generation),
    meet: () => ({}),
    release: () => guard.release(),
  };
}

function startProcess({ script, args, data, env, ...options }: StartOptions, local: number): ChildProcess {
  // Variables that an outer launcher has set for this process are not for its ranks.
  const { PIPEWRIGHT_THREAD_GROUP: _group, TORCHELASTIC_USE_AGENT_STORE: _store, ...outer } = process.env;
  const child = spawn(process.execPath, [fileURLToPath(compiledUrl('process-entry', import.meta.url))], {
    env: { ...outer, PIPEWRIGHT_THREADS: String(options.threadsPerRank), ...env(local) },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    serialization: 'advanced',
    // In a process group of its own: Ctrl-C reaches the launcher alone, and the rank's children are ended with it.
    detached: true,
  });
  if (child.pid !== undefined) child.send({ script, args, data }, () => undefined);
  return child;
}

interface Watch {
  /** Whether the launcher is ending its ranks. */
  ending(): boolean;
  gone(): void;
}

function listen(child: ChildProcess, rank: number, events: RankEvents, watch: Watch): void {
  let report: ProcessReport | undefined;
  const fail = (failure: RankFailure): void => events.failed(failure);
  const outputs = [forward(child, 'stdout', rank, events), forward(child, 'stderr', rank, events)];
  child.on('message', (message: unknown) => {
    const notice = unmarked<RankNotice>(message);
    if (notice !== undefined) events.notice(rank, notice);
    // Other messages are the script's own.
    if (!isReport(message)) return;
    report = message;
    if (message.kind === 'error') fail(failureOf(rank, message.error, message.atMs));
  });
  child.on('error', (error) => {
    // It could not be started, or a message could not be sent; only the first means that no exit will follow.
    if (child.pid !== undefined) return;
    watch.gone();
    fail(failureOf(rank, { name: error.name, message: `it could not be started: ${error.message}` }, steadyMs()));
    events.ended(rank, undefined);
  });
  const disconnected = new Promise((resolve) => child.on('disconnect', resolve));
  child.on('exit', (code, signal) => {
    const ended = watch.ending();
    watch.gone();
    signalGroup(child, 'SIGKILL');
    const all = Promise.all([disconnected, ...outputs.map(({ closed }) => closed)]);
    void Promise.race([all, silence(() => outputs.reduce((sum, { chunks }) => sum + chunks(), 0))]).then(() => {
      for (const output of outputs) output.end();
      if (report?.kind !== 'error' && (code !== 0 || signal !== null))
        fail(silentFailure(rank, { code, signal, ended }));
      events.ended(rank, report?.kind === 'result' ? report.value : undefined);
    });
  });
}

/** Returns when no output has come for a while. Pending output is read before each check, however busy the machine is. */
async function silence(heard: () => number): Promise<void> {
  for (let before = -1; before !== heard(); ) {
    before = heard();
    await new Promise((resolve) => setTimeout(resolve, SILENCE_MS).unref());
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function forward(
  child: ChildProcess,
  stream: OutputStream,
  rank: number,
  events: RankEvents,
): { readonly closed: Promise<void>; chunks(): number; end(): void } {
  let chunks = 0;
  const cutter = new LineCutter((line) => events.line(line, { rank, stream }));
  const source = child[stream];
  source?.setEncoding('utf8').on('data', (text: string) => {
    chunks++;
    cutter.write(text);
  });
  const closed = new Promise<void>((resolve) => {
    if (source === null) resolve();
    else source.on('close', resolve);
  });
  return { closed, chunks: () => chunks, end: () => cutter.end() };
}

function signalGroup({ pid }: ChildProcess, name: NodeJS.Signals): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

function isStopped(pid: number | undefined): boolean {
  if (pid === undefined) return false;
  try {
    // "pid (name) T ...": the name may hold anything, also brackets.
    return /^[Tt]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /s, ''));
  } catch {
    return /^T/.test(spawnSync('ps', ['-o', 'stat=', '-p', String(pid)], { encoding: 'utf8' }).stdout ?? '');
  }
}
