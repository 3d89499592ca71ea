/** @file A machine other than number 0: its launcher connects to that of machine 0. */
import { connect, type Socket } from 'node:net';
import { PipelineError } from '../../base/errors.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import type { RankNotice } from '../replacement/messages.ts';
import type { Connection } from './connection.ts';
import { respond } from './handshake.ts';
import {
  type Link,
  type LinkEvents,
  type LinkOptions,
  lostMachine,
  type MachineReport,
  type WholeReport,
} from './link.ts';
import { type Fields, hubMessage } from './messages.ts';

const RETRY_MS = 200;

/** Connects to machine 0 and waits until all machines have. */
export async function openGuest(options: LinkOptions, events: LinkEvents): Promise<Link> {
  const deadline = steadyMs() + options.joinMs;
  const guest = new Guest(options, events);
  await enter(guest, options, deadline);
  const timer = setTimeout(() => guest.giveUp(late(options, 'not all machines came')), deadline - steadyMs());
  try {
    await guest.complete;
  } finally {
    clearTimeout(timer);
  }
  return guest;
}

/** Connects and proves the secret, until machine 0 accepts: it may be started later, or have too many open connections. */
async function enter(guest: Guest, options: LinkOptions, deadline: number): Promise<void> {
  let why = 'no answer';
  for (let left = options.joinMs; left > 0; left = deadline - steadyMs()) {
    const socket = connect(options.port, options.host);
    if (await isConnected(socket, left, (problem) => (why = problem))) {
      const entry = await respond(socket, options, {
        message: (message) => guest.message(message),
        lost: (problem) => guest.gone(problem),
      });
      if ('connection' in entry) return guest.begin(entry.connection);
      if ('refused' in entry)
        throw new PipelineError('REFUSED', `launch: machine 0 refused this machine: ${entry.refused}`);
      why = entry.lost;
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(RETRY_MS, Math.max(0, deadline - steadyMs()))));
  }
  throw late(options, why);
}

async function isConnected(socket: Socket, limitMs: number, problem: (why: string) => void): Promise<boolean> {
  const timer = setTimeout(() => socket.destroy(), limitMs);
  const note = (error: Error): void => problem(error.message);
  socket.on('error', note);
  const reached = await new Promise<boolean>((resolve) => {
    socket.once('connect', () => resolve(true)).once('close', () => resolve(false));
  });
  clearTimeout(timer);
  return reached;
}

function late({ host, port, joinMs }: LinkOptions, why: string): PipelineError {
  return new PipelineError(
    'TIMED_OUT',
    `launch: machine 0 did not begin at ${host}:${port} within ${joinMs} ms (${why}); is its launcher running, with the same masterAddr and masterPort, and may this machine reach port ${port} there?`,
  );
}

class Guest implements Link {
  run = '';
  restarts = 0;
  readonly complete: Promise<void>;
  giveUp: (error: PipelineError) => void = () => undefined;
  private allHere: () => void = () => undefined;
  private connection: Connection | undefined;
  private readonly options: LinkOptions;
  private readonly events: LinkEvents;
  private loss: RankFailure | undefined;
  private finish: (report: WholeReport) => void = () => undefined;
  private mayRestart = false;
  private own: MachineReport = { failures: [], places: [] };

  constructor(options: LinkOptions, events: LinkEvents) {
    this.options = options;
    this.events = events;
    this.complete = new Promise((resolve, reject) => {
      this.allHere = resolve;
      this.giveUp = (error) => {
        this.close();
        reject(error);
      };
    });
    // It may be rejected before anything awaits it.
    this.complete.catch(() => undefined);
  }

  /** Machine 0 has accepted this machine. */
  begin(connection: Connection): void {
    this.connection = connection;
  }

  failed(failure: RankFailure): void {
    this.connection?.send({ kind: 'failed', failure });
  }

  lost(failure: RankFailure, places: readonly RankPlace[]): void {
    this.connection?.send({ kind: 'lost', failure, places });
  }

  notice(rank: number, notice: RankNotice): void {
    this.connection?.send({ kind: 'notice', rank, notice });
  }

  command(): boolean {
    return false;
  }

  over(report: MachineReport, mayRestart = false): Promise<WholeReport> {
    this.own = report;
    this.mayRestart = mayRestart;
    this.connection?.send({ kind: 'over', ...report });
    return new Promise((resolve) => {
      this.finish = resolve;
      if (this.loss !== undefined) resolve(this.withLoss());
    });
  }

  close(): void {
    this.connection?.close();
  }

  message(message: Fields): void {
    const { nnodes, ranks } = this.options;
    const heard = hubMessage(message, { first: 0, count: nnodes * ranks });
    if (heard.kind === 'go') {
      this.run = heard.run;
      this.restarts = heard.restarts;
      this.allHere();
    } else if (heard.kind === 'failed') this.events.failed(heard.failure);
    else if (heard.kind === 'command') this.events.command?.(heard.command);
    else if (heard.kind === 'report') this.finish(heard);
  }

  gone(why: string): void {
    this.loss = lostMachine(0, this.options.ranks, why);
    this.giveUp(new PipelineError('PEER_LOST', `launch: ${this.loss.message}, before all machines were there`));
    this.events.failed(this.loss);
    this.finish(this.withLoss());
  }

  /** The report of this machine alone, when machine 0 is gone. */
  private withLoss(): WholeReport {
    const failures = [...this.own.failures, this.loss!];
    // Machine 0 may be started again.
    return { failures, places: this.own.places, again: this.mayRestart };
  }
}
