/** @file One start of all ranks: when a rank fails it ends all of them and reports the cause and where the others were. */
import { freePort } from '@pipewright/torch/environment';
import { PipelineError } from '../base/errors.ts';
import { steadyMs } from '../base/steady-clock.ts';
import { processBoard, type StatusBoard, threadBoard } from '../status/board.ts';
import { STATUS_FILE } from '../status/layout.ts';
import type { RankPlace } from '../status/place.ts';
import type { LaunchPlan } from './launch-options.ts';
import { interfaceTowards } from './machines/address.ts';
import { openGuest } from './machines/guest.ts';
import { openHub } from './machines/hub.ts';
import { type Link, type LinkEvents, type LinkOptions, lostMachine, type MachineCommand } from './machines/link.ts';
import { proofOf } from './machines/secret.ts';
import { JOINING, NEVER_JOINED } from './ranks/joining.ts';
import { startProcesses } from './ranks/process-ranks.ts';
import {
  failedInWait,
  LaunchError,
  lateFailure,
  leftFailure,
  type RankFailure,
  stoppedFailure,
} from './ranks/rank-failure.ts';
import type { RankEvents, StartedRanks } from './ranks/started-ranks.ts';
import { startThreads } from './ranks/thread-ranks.ts';
import { type LauncherOrder, type RankNotice, REPLACES } from './replacement/messages.ts';
import type { Recovery } from './replacement/recovery.ts';
import { Replacement } from './replacement/replacement.ts';

/** How long after the polite signal a rank is killed. */
const KILL_MS = 1000;
/** The default time limit for machines that wait for each other and for ranks that are stopped. */
export const LIMIT_MS = 300_000;
/** How often to check whether ranks wait for one that will never join. */
const JOIN_LOOK_MS = 250;

/** How long a rank that is replaced may take to end by itself. */
const REPLACE_MS = 300;

/** What is the same for all attempts of a launch, and which one this is. */
export interface AttemptOptions {
  readonly line: RankEvents['line'];
  /** The secret that all machines of this launch share. */
  secret(): Promise<string>;
  /** A number for the whole launch; all its attempts have the same. */
  readonly id: string;
  /** How often ranks were started again so far: all of them, or lost ones alone. */
  restarts(): number;
  /** Whether they are started again if this attempt fails. */
  mayRestart(): boolean;
  /** Lost ranks are started again alone: counts it. */
  replaced(): void;
  recovered(recovery: Recovery): void;
}

/** When the first failure was noticed, and when all ranks had ended. */
export interface AttemptTimes {
  readonly noticedMs: number | undefined;
  readonly endedMs: number | undefined;
}

/** All ranks of this machine, from their start to the end of the last one. */
export class Attempt {
  readonly done: Promise<unknown[]>;
  private readonly plan: LaunchPlan;
  private readonly options: AttemptOptions;
  private readonly board: StatusBoard;
  private readonly first: number;
  private started: StartedRanks | undefined;
  private readonly values: unknown[] = [];
  private readonly over = new Set<number>();
  /** When ranks ended. */
  private readonly ends = new Map<number, number>();
  private failures: readonly RankFailure[] = [];
  private link: Link | undefined;
  private noticed: number | undefined;
  private allEnded: number | undefined;
  /** How often ranks were started again, as machine 0 counts; the ranks of this attempt that are started from now on find it. */
  private restarts: number;
  /** How often they were when this attempt began. */
  private readonly before: number;
  private again = false;
  /** Where all were when the first one failed. */
  private snapshot: readonly RankPlace[] | undefined;
  private signalled: NodeJS.Signals | undefined;
  private paused = false;
  private replacement: Replacement | undefined;
  /** Ranks that are started again when they have ended. */
  private readonly replacing = new Set<number>();
  /** Ranks that train with `trainLoop`, and may not end before all have done all steps. */
  private readonly inLoop = new Set<number>();
  /** Lost ranks of this machine for which machine 0 has not decided yet what to do. */
  private readonly undecided = new Map<number, RankFailure>();
  private readonly timers: NodeJS.Timeout[] = [];
  private allOver: () => void = () => undefined;
  /** Ends the wait for other machines. */
  private interrupt: () => void = () => undefined;

  constructor(plan: LaunchPlan, options: AttemptOptions) {
    this.plan = plan;
    this.options = options;
    this.restarts = this.before = options.restarts();
    this.first = plan.nodeRank * plan.ranks;
    this.board = plan.mode === 'threads' ? threadBoard(plan.ranks) : processBoard(plan.ranks, this.first);
    this.done = this.run();
    this.done.catch(() => undefined);
  }

  places(): RankPlace[] {
    const stopped = this.started?.stopped() ?? new Set();
    const places = this.board.places().map((place): RankPlace => {
      if (stopped.has(place.rank)) return { ...place, state: 'stopped', waitingFor: undefined };
      return this.over.has(place.rank) ? { ...place, state: 'done', waitingFor: undefined } : place;
    });
    return this.markFailed(places);
  }

  /** Marks ranks that failed by themselves as failed. Those that failed in a wait stay waiting, and stopped ones stopped. */
  private markFailed(places: readonly RankPlace[]): RankPlace[] {
    const failed = new Set(
      this.failures.filter((one) => !failedInWait(one) && one.code !== 'STOPPED').map(({ rank }) => rank),
    );
    return places.map((place) =>
      failed.has(place.rank) ? { ...place, state: 'failed', waitingFor: undefined } : place,
    );
  }

  get times(): AttemptTimes {
    return { noticedMs: this.noticed, endedMs: this.allEnded };
  }

  /** After its end: whether all machines start their ranks again. */
  get startsAgain(): boolean {
    return this.again;
  }

  pids(): readonly number[] {
    return this.started?.pids ?? [];
  }

  end(signal: NodeJS.Signals): void {
    if (this.signalled !== undefined) this.started?.kill();
    else {
      this.signalled = signal;
      this.interrupt();
      this.started?.signal(signal);
      this.later(this.plan.graceMs, () => this.started?.kill());
    }
  }

  pause(on: boolean): void {
    this.paused = on;
    this.started?.signal(on ? 'SIGSTOP' : 'SIGCONT');
  }

  private async run(): Promise<unknown[]> {
    try {
      const network = await this.networkInterface();
      const { ranks: count, script, args, data, graceMs, threadsPerRank } = this.plan;
      const ended = new Promise<void>((resolve) => (this.allOver = resolve));
      const events: RankEvents = {
        line: this.options.line,
        failed: (failure) => this.failed(failure),
        ended: (rank, value) => this.ended(rank, value),
        notice: (rank, notice) => this.heard(rank, notice),
      };
      this.link = await this.joinMachines();
      this.checkSignal();
      const env = await this.environment(network);
      const replaces = this.plan.maxRestarts > 0;
      const start = {
        ...{ count, first: this.first, script, args, data, board: this.board, env, graceMs, threadsPerRank, replaces },
      };
      if (replaces && this.plan.nodeRank === 0) this.replacement = this.replaceRanks();
      this.started = this.plan.mode === 'threads' ? await startThreads(start, events) : startProcesses(start, events);
      if (this.signalled !== undefined) this.started.signal(this.signalled);
      this.watchStopped();
      this.watchJoining();
      await ended;
      this.allEnded = steadyMs();
      await this.gatherMachines();
    } finally {
      this.replacement?.close();
      this.link?.close();
      for (const timer of this.timers) clearTimeout(timer);
      this.started?.release();
      this.board.close();
    }
    this.checkSignal();
    this.blameEarly();
    if (this.failures.length > 0) throw new LaunchError(this.failures, this.markFailed(this.snapshot ?? []));
    return this.values;
  }

  private checkSignal(): void {
    const { signalled: signal } = this;
    if (signal === undefined) return;
    throw new PipelineError('TERMINATED', `launch: the ranks were ended by ${signal}`, { signal });
  }

  /** A rank of this machine has failed. */
  private failed(failure: RankFailure): void {
    // A stopped rank that is killed has failed already, because it was stopped.
    if (this.failures.some(({ rank }) => rank === failure.rank) || this.replacing.has(failure.rank)) return;
    if (this.snapshot === undefined && this.signalled === undefined) {
      if (this.replacement?.lost([failure], this.places()) === true) return;
      // Machine 0 decides; until then it counts as being replaced.
      if (this.plan.nodeRank > 0 && this.plan.maxRestarts > 0 && this.inLoop.size > 0) {
        this.undecided.set(failure.rank, failure);
        return this.link?.lost(
          failure,
          this.places().filter(({ rank }) => rank === failure.rank),
        );
      }
    }
    this.failures = [...this.failures, failure];
    if (this.snapshot === undefined || !failedInWait(failure)) this.link?.failed(failure);
    this.endAll();
  }

  /** Where ranks failed only because they lost another one that had ended well, that one ended too early and is the cause. */
  private blameEarly(): void {
    const [victim] = this.failures.filter(({ code }) => code === 'PEER_LOST');
    if (victim === undefined || !this.failures.every(failedInWait)) return;
    const early = [...this.ends].filter(([rank]) => !this.failures.some((failure) => failure.rank === rank));
    const awaited = this.snapshot?.find(({ rank }) => rank === victim.rank)?.waitingFor;
    const [rank, atMs] = early.find(([one]) => one === awaited) ?? early[0] ?? [];
    if (rank === undefined || atMs === undefined) return;
    this.failures = [...this.failures, leftFailure(rank, { atMs, needs: `rank ${victim.rank} waited for it` })];
  }

  /** Ranks that ended well without joining, while others wait for them: these would wait until their time limit. */
  private watchJoining(): void {
    const look = (): void => {
      if (this.failures.length > 0) return;
      const places = this.board.places();
      const never = places.find(({ rank, action }) => action === NEVER_JOINED && this.over.has(rank));
      const waiting = places.find(
        ({ rank, action, state }) => action === JOINING && state === 'waiting' && !this.over.has(rank),
      );
      if (never === undefined || waiting === undefined) return;
      const needs = `rank ${waiting.rank} waits for it in initProcessGroup`;
      this.failed(leftFailure(never.rank, { atMs: this.ends.get(never.rank) ?? steadyMs(), needs }));
    };
    if (this.plan.mode === 'processes') this.timers.push(setInterval(look, JOIN_LOOK_MS));
  }

  /** A rank has failed, here or elsewhere. */
  private endAll(): void {
    if (this.snapshot !== undefined) return;
    this.noticed = steadyMs();
    this.snapshot = this.places();
    if (this.signalled !== undefined) return;
    // Other ranks may wait for stopped ones.
    if (!this.paused)
      for (const { rank, state } of this.snapshot) if (state === 'stopped') this.failed(stoppedFailure(rank));
    // The others notice the failure by themselves; those that do not in time are ended.
    this.later(this.plan.graceMs, () => this.started?.signal('SIGTERM'));
    this.later(this.plan.graceMs + KILL_MS, () => this.started?.kill());
    this.killStopped();
  }

  /** After a failure: when only stopped ranks are left, they need no time of grace. */
  private killStopped(): void {
    const left = this.plan.ranks - this.over.size;
    if (this.snapshot !== undefined && this.started?.stopped().size === left) this.started.kill();
  }

  /** A stopped rank that no other one waits for would keep the launcher waiting for ever. */
  private watchStopped(): void {
    const limit =
      this.plan.timeoutMs ?? Number({ ...process.env, ...this.plan.env }['PIPEWRIGHT_TIMEOUT_MS'] || LIMIT_MS);
    const every = Math.min(Math.max(limit / 10, 100), 10_000);
    const times = new Map<number, number>();
    const look = (): void => {
      const stopped = this.paused ? new Set<number>() : (this.started?.stopped() ?? new Set());
      for (const rank of times.keys()) if (!stopped.has(rank)) times.delete(rank);
      for (const rank of stopped) {
        const seen = (times.get(rank) ?? 0) + 1;
        times.set(rank, seen);
        if (seen * every > limit) this.failed(stoppedFailure(rank));
      }
    };
    if (this.plan.mode === 'processes') this.timers.push(setInterval(look, every));
  }

  /** Starts lost ranks again alone, if the script trains with `trainLoop`. */
  private replaceRanks(): Replacement {
    const limitMs = this.plan.timeoutMs ?? LIMIT_MS;
    return new Replacement(this.plan.nnodes * this.plan.ranks, limitMs, {
      of: this.plan.maxRestarts,
      count: () => this.options.restarts(),
      mayReplace: () => {
        if (!this.options.mayRestart()) return false;
        this.options.replaced();
        return true;
      },
      start: (rank) => this.command({ kind: 'start', rank, restarts: this.options.restarts() }),
      interrupt: (generation) => {
        this.link?.command({ kind: 'interrupt', generation });
        this.obey({ kind: 'interrupt', generation });
      },
      meet: async () => ({ ...(this.started?.meet() ?? {}), ...(await this.meetingPoint()) }),
      tell: (rank, order) => this.command({ kind: 'order', rank, order }),
      killStopped: () => this.killStoppedRanks(),
      late: (rank) => this.command({ kind: 'kill', rank }),
      recovered: this.options.recovered,
    });
  }

  /** Sends an order of machine 0 to a rank of any machine. A machine that is gone starts its ranks when it comes back. */
  private command(command: Exclude<MachineCommand, { kind: 'interrupt' }>): void {
    const local = command.rank - this.first;
    if (local >= 0 && local < this.plan.ranks) return this.obey(command);
    if (this.link?.command(command) === true || command.kind !== 'kill') return undefined;
    const machine = Math.floor(command.rank / this.plan.ranks);
    const failure = lostMachine(machine, this.plan.ranks, 'it did not come back in time');
    this.failures = [...this.failures, failure];
    this.link?.failed(failure);
    return this.endAll();
  }

  /** Carries out an order of machine 0 for ranks of this machine. */
  private obey(command: MachineCommand): void {
    if (command.kind === 'interrupt') {
      this.started?.interrupt(command.generation);
      return this.killStoppedRanks();
    }
    const { rank } = command;
    if (command.kind === 'start') {
      this.restarts = command.restarts;
      return this.replace(rank);
    }
    if (command.kind === 'kill') return this.late(rank);
    if (command.order.kind === 'end') this.inLoop.delete(rank);
    return void this.withSecret(command.order).then((order) => this.started?.tell(rank, order));
  }

  /** The others have waited for a rank until their time limit: it counts as lost. */
  private late(rank: number): void {
    this.started?.killRank(rank);
    this.failed(lateFailure(rank, this.plan.timeoutMs ?? LIMIT_MS));
  }

  /** Every machine knows the secret; it does not travel. */
  private async withSecret(order: LauncherOrder): Promise<LauncherOrder> {
    if (order.kind === 'end' || this.plan.mode === 'threads') return order;
    return { ...order, secret: await this.rankSecret(order.number) };
  }

  /** A rank of this machine has reported how far it is. */
  private heard(rank: number, notice: RankNotice): void {
    if (notice.kind === 'ready') this.inLoop.add(rank);
    if (this.plan.nodeRank > 0) return this.link?.notice(rank, notice);
    this.replacement?.heard(rank, notice);
    // Ranks that have ended already will not get ready.
    for (const one of [...this.over]) if (this.replacement?.awaits(one) === true) this.failed(leftLoop(one));
    return undefined;
  }

  /** Starts a rank again when nothing is left of it. */
  private replace(rank: number): void {
    this.inLoop.delete(rank);
    this.undecided.delete(rank);
    if (this.over.delete(rank)) return this.started?.restart(rank);
    this.replacing.add(rank);
    return this.later(REPLACE_MS, () => {
      if (this.replacing.has(rank)) this.started?.killRank(rank);
    });
  }

  private killStoppedRanks(): void {
    if (!this.paused) for (const rank of this.started?.stopped() ?? []) this.started?.killRank(rank);
  }

  /** Where the processes of a generation meet; those of an earlier one have another secret and are refused. */
  private async meetingPoint(): Promise<{ masterPort?: number }> {
    return this.plan.mode === 'threads' ? {} : { masterPort: this.plan.masterPort ?? (await freePort()) };
  }

  /** The secret of this run's ranks: those of another run whose machines share the same secret are refused. */
  private async rankSecret(generation: number): Promise<string> {
    return proofOf(await this.options.secret(), 'ranks', this.link?.run ?? this.before, generation);
  }

  private ended(rank: number, value: unknown): void {
    const isExpected = this.replacing.has(rank) || this.undecided.has(rank) || this.snapshot !== undefined;
    if ((this.inLoop.has(rank) || this.replacement?.awaits(rank) === true) && !isExpected) this.failed(leftLoop(rank));
    if (this.replacing.delete(rank) && this.signalled === undefined && this.snapshot === undefined)
      return this.started?.restart(rank);
    this.over.add(rank);
    this.ends.set(rank, steadyMs());
    this.values[rank - this.first] = value;
    if (this.over.size === this.plan.ranks) return this.allOver();
    return this.killStopped();
  }

  /** With several machines: returns when the launchers of all have found each other. */
  private async joinMachines(): Promise<Link | undefined> {
    const { nnodes, nodeRank, ranks, masterAddr: host, masterPort = 0, timeoutMs, graceMs } = this.plan;
    if (nnodes === 1) return undefined;
    const interrupted = new Promise<undefined>((resolve) => (this.interrupt = () => resolve(undefined)));
    const joinMs = timeoutMs ?? LIMIT_MS;
    const secret = await Promise.race([this.options.secret(), interrupted]);
    if (secret === undefined) return undefined;
    const options: LinkOptions = {
      ...{ nnodes, nodeRank, ranks, host, port: masterPort + 1, secret, joinMs },
      restarts: () => this.options.restarts(),
      networkInterface: this.plan.networkInterface ?? (process.env['GLOO_SOCKET_IFNAME'] || undefined),
      endMs: graceMs + 3 * KILL_MS,
    };
    const events: LinkEvents = {
      failed: () => {
        this.failures = [...this.failures, ...this.undecided.values()];
        this.undecided.clear();
        this.endAll();
      },
      lost: (failures, places) => this.snapshot === undefined && this.replacement?.lost(failures, places) === true,
      notice: (rank, notice) => this.replacement?.heard(rank, notice),
      command: (command) => this.obey(command),
    };
    const link = nodeRank === 0 ? openHub(options, events) : openGuest(options, events);
    const joined = await Promise.race([link, interrupted]);
    this.restarts = joined?.restarts ?? this.restarts;
    return joined;
  }

  /** With several machines: what happened on all of them. */
  private async gatherMachines(): Promise<void> {
    this.again = this.signalled === undefined && this.failures.length > 0 && this.options.mayRestart();
    if (this.link === undefined) return;
    const own = { failures: this.failures, places: this.snapshot ?? [] };
    const mayRestart = this.signalled === undefined && this.options.mayRestart();
    const { failures, places, again } = await this.link.over(own, mayRestart);
    this.again = again;
    this.failures = failures;
    this.snapshot = places.toSorted((a, b) => a.rank - b.rank);
  }

  /** Calls something later, after pending events: on a busy machine ranks may have ended in time without the launcher knowing yet. */
  private later(ms: number, action: () => void): void {
    this.timers.push(setTimeout(() => setImmediate(action), ms));
  }

  /** The network interface of ranks that are processes. */
  private async networkInterface(): Promise<string | undefined> {
    const { mode, networkInterface, masterAddr } = this.plan;
    if (mode === 'threads') return undefined;
    return networkInterface ?? (process.env['GLOO_SOCKET_IFNAME'] || (await interfaceTowards(masterAddr)));
  }

  /** The environment variables of each rank. */
  private async environment(network: string | undefined): Promise<(local: number) => Readonly<Record<string, string>>> {
    const { ranks, mode, nnodes, nodeRank, masterAddr, timeoutMs, env } = this.plan;
    const limit = timeoutMs === undefined ? {} : { PIPEWRIGHT_TIMEOUT_MS: String(timeoutMs) };
    const elastic = (): Record<string, string> => ({
      TORCHELASTIC_RESTART_COUNT: String(this.restarts),
      TORCHELASTIC_MAX_RESTARTS: String(this.plan.maxRestarts),
      TORCHELASTIC_RUN_ID: this.options.id,
    });
    const replaces = this.plan.maxRestarts > 0 ? { [REPLACES]: '1' } : {};
    if (mode === 'threads') return () => ({ ...limit, ...elastic(), ...replaces, ...env });
    const masterPort = this.plan.masterPort ?? (await freePort());
    const secret = await this.rankSecret(0);
    const { NCCL_SOCKET_IFNAME = network } = process.env;
    return (local) => ({
      ...limit,
      ...(network === undefined ? {} : { GLOO_SOCKET_IFNAME: network }),
      ...(NCCL_SOCKET_IFNAME === undefined ? {} : { NCCL_SOCKET_IFNAME }),
      ...elastic(),
      ...replaces,
      ...env,
      RANK: String(this.first + local),
      WORLD_SIZE: String(nnodes * ranks),
      LOCAL_RANK: String(local),
      LOCAL_WORLD_SIZE: String(ranks),
      GROUP_RANK: String(nodeRank),
      GROUP_WORLD_SIZE: String(nnodes),
      ROLE_RANK: String(this.first + local),
      ROLE_WORLD_SIZE: String(nnodes * ranks),
      MASTER_ADDR: masterAddr,
      MASTER_PORT: String(masterPort),
      PIPEWRIGHT_SECRET: secret,
      [STATUS_FILE]: this.board.shared as string,
    });
  }
}

/** The failure of a rank that ended well while the others have steps to do with it. */
function leftLoop(rank: number): RankFailure {
  return leftFailure(rank, { atMs: steadyMs(), needs: 'the other ranks have steps to do' });
}
