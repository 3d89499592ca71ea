/** @file Machine 0: the launchers of the other machines connect to it. */
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { PipelineError } from '../../base/errors.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import { listenAddress } from './address.ts';
import type { Connection, ConnectionEvents } from './connection.ts';
import { type Arrival, challenge, LATER } from './handshake.ts';
import {
  type HubMessage,
  type Link,
  type LinkEvents,
  type LinkOptions,
  lostMachine,
  type MachineCommand,
  type MachineReport,
  type WholeReport,
} from './link.ts';
import { type Fields, guestMessage } from './messages.ts';
import { makeSecret } from './secret.ts';

/** Most connections that have not proved the secret; with more, the oldest is closed. */
const MOST_UNPROVEN = 64;

/** Waits for the launchers of all other machines. */
export async function openHub(options: LinkOptions, events: LinkEvents): Promise<Link> {
  const { host, port, joinMs, nnodes } = options;
  const address = await listenAddress(host, options.networkInterface);
  const server = createServer();
  const hub = new Hub(options, events, server);
  server.on('connection', (socket) => hub.welcome(socket));
  server.listen(port, address);
  try {
    await once(server, 'listening');
  } catch (error) {
    throw new PipelineError(
      'NO_PORT',
      `launch: cannot listen on port ${port}, which the launchers use (masterPort + 1): ${(error as Error).message}; give another masterPort, the same on all machines`,
    );
  }
  // Errors of a single connection are reported by that connection.
  server.on('error', () => undefined);
  const timer = setTimeout(() => {
    const missing = hub.missing();
    hub.giveUp(
      new PipelineError(
        'TIMED_OUT',
        `launch: machine ${missing.join(', ')} did not come to ${host}:${port} within ${joinMs} ms; start a launcher there with nnodes ${nnodes}, its own nodeRank and the secret of machine 0`,
      ),
    );
  }, joinMs);
  try {
    await hub.complete;
  } finally {
    clearTimeout(timer);
  }
  return hub;
}

class Hub implements Link {
  readonly run: string = makeSecret();
  readonly restarts: number;
  private begun = false;
  /** All machines have connected. */
  readonly complete: Promise<void>;
  giveUp: (error: PipelineError) => void = () => undefined;
  private allHere: () => void = () => undefined;
  private readonly options: LinkOptions;
  private readonly events: LinkEvents;
  private readonly server: Server;
  private readonly machines = new Map<number, Connection>();
  /** Machines that have connected, even if they are gone: one that waits for others may give up before this one. */
  private readonly seen = new Set<number>();
  /** Functions that end the connections that have not proved the secret, the oldest first. */
  private readonly unproven = new Set<() => void>();
  /** Machines that were lost and may come back while the others live. */
  private readonly awaited = new Set<number>();
  private readonly reports = new Map<number, MachineReport>();
  private allOver: () => void = () => undefined;

  constructor(options: LinkOptions, events: LinkEvents, server: Server) {
    this.options = options;
    this.restarts = options.restarts?.() ?? 0;
    this.events = events;
    this.server = server;
    this.complete = new Promise((resolve, reject) => {
      this.allHere = resolve;
      this.giveUp = (error) => {
        this.close();
        reject(error);
      };
    });
  }

  /** Machines that have not connected; if all have, those that are gone again. */
  missing(): number[] {
    const others = Array.from({ length: this.options.nnodes - 1 }, (_, i) => i + 1);
    const never = others.filter((machine) => !this.seen.has(machine));
    return never.length > 0 ? never : others.filter((machine) => !this.machines.has(machine));
  }

  /** A connection was opened, by a machine of the run or by anything else. */
  welcome(socket: Socket): void {
    let forget: () => void = () => undefined;
    const end = challenge(socket, this.options.secret, {
      admit: (arrival, connection) => {
        const problem = this.problemOf(arrival);
        if (problem !== undefined) return problem;
        // A machine that was lost and has come back: it can join where its ranks are awaited, or when all are started again.
        if (this.begun && !this.awaited.has(arrival.machine)) return LATER;
        forget();
        return this.enter(arrival.machine, connection);
      },
      refused: () => forget(),
    });
    this.unproven.add(end);
    forget = () => void this.unproven.delete(end);
    const [oldest] = this.unproven;
    if (this.unproven.size > MOST_UNPROVEN) oldest?.();
  }

  failed(failure: RankFailure): void {
    this.tellAll({ kind: 'failed', failure });
  }

  lost(): void {
    // Machine 0 decides by itself.
  }

  notice(): void {
    // Machine 0 keeps the account itself.
  }

  command(command: MachineCommand): boolean {
    const message = { kind: 'command', command } as const;
    if (command.kind === 'interrupt') {
      this.tellAll(message);
      return true;
    }
    const connection = this.machines.get(Math.floor(command.rank / this.options.ranks));
    connection?.send(message);
    return connection !== undefined;
  }

  async over(report: MachineReport, mayRestart = false): Promise<WholeReport> {
    this.reports.set(0, report);
    const { nnodes, ranks, endMs } = this.options;
    await new Promise<void>((resolve) => {
      this.allOver = resolve;
      this.check();
      // After a failure every machine ends its ranks and reports it; one that does not is gone.
      if (this.anyFailure()) setTimeout(() => setImmediate(resolve), endMs).unref();
    });
    for (let machine = 1; machine < nnodes; machine++)
      if (!this.reports.has(machine))
        this.reports.set(machine, { failures: [lostMachine(machine, ranks, 'it did not end')], places: [] });
    const all = [...this.reports.values()];
    const failures = all.flatMap((one) => one.failures);
    const places = all.flatMap((one) => one.places);
    const whole = { failures, places, again: mayRestart && failures.length > 0 };
    this.tellAll({ kind: 'report', ...whole });
    return whole;
  }

  close(): void {
    for (const end of [...this.unproven]) end();
    for (const connection of this.machines.values()) connection.close();
    this.server.close();
    this.server.unref();
  }

  /** Why a machine that knows the secret is not accepted. */
  private problemOf({ machine, nnodes, ranks }: Arrival): string | undefined {
    const { options } = this;
    if (nnodes !== options.nnodes) return `it has nnodes ${nnodes}, machine 0 has ${options.nnodes}`;
    if (ranks !== options.ranks)
      return `it starts ${ranks} ranks, machine 0 starts ${options.ranks}; all must start equally many`;
    if (machine < 1 || machine >= nnodes)
      return `its nodeRank is ${machine}; those of the others are 1 to ${nnodes - 1}`;
    return this.machines.has(machine) ? `there is a machine with nodeRank ${machine} already` : undefined;
  }

  private enter(machine: number, connection: Connection): ConnectionEvents {
    this.machines.set(machine, connection);
    this.seen.add(machine);
    const range = { first: machine * this.options.ranks, count: this.options.ranks };
    // The acceptance is sent first.
    setImmediate(() => {
      if (this.awaited.delete(machine)) {
        this.reports.delete(machine);
        connection.send({ kind: 'go', run: this.run, restarts: this.options.restarts?.() ?? 0 });
      }
      if (this.begun || this.machines.size < this.options.nnodes - 1) return;
      this.begun = true;
      this.tellAll({ kind: 'go', run: this.run, restarts: this.restarts });
      this.allHere();
    });
    return {
      message: (message: Fields) => {
        const heard = guestMessage(message, range);
        if (heard.kind === 'failed') this.spread(machine, heard.failure);
        else if (heard.kind === 'notice') this.events.notice?.(heard.rank, heard.notice);
        else if (heard.kind === 'lost') {
          if (this.events.lost?.([heard.failure], heard.places) !== true) this.spread(undefined, heard.failure);
        } else if (heard.kind === 'over') {
          this.reports.set(machine, { failures: heard.failures, places: heard.places });
          this.check();
        }
      },
      lost: (why) => this.lose(machine, why),
    };
  }

  private lose(machine: number, why: string): void {
    this.machines.delete(machine);
    if (this.reports.has(machine)) return;
    const failure = lostMachine(machine, this.options.ranks, why);
    const first = machine * this.options.ranks;
    const all = Array.from({ length: this.options.ranks }, (_, i) => ({ ...failure, rank: first + i }));
    this.awaited.add(machine);
    if (this.begun && this.events.lost?.(all, []) === true) return;
    this.awaited.delete(machine);
    this.reports.set(machine, { failures: [failure], places: [] });
    this.spread(machine, failure);
    this.check();
  }

  private tellAll(message: HubMessage, except?: number): void {
    for (const [machine, connection] of this.machines) if (machine !== except) connection.send(message);
  }

  /** Sends a failure of one machine to all others. */
  private spread(from: number | undefined, failure: RankFailure): void {
    this.tellAll({ kind: 'failed', failure }, from);
    this.events.failed(failure);
  }

  private check(): void {
    if (this.reports.size === this.options.nnodes) this.allOver();
  }

  private anyFailure(): boolean {
    return [...this.reports.values()].some(({ failures }) => failures.length > 0);
  }
}
