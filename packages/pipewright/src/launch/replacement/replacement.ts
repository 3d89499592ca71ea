/**
 * @file Ranks that are lost while others live. A rank that trains with `trainLoop` says when it is ready to connect; when all are,
 * they get the number of a generation and the place where they meet. When one is lost, the waits of the others end, it is started
 * again alone, and all become ready for the next generation. The launcher of machine 0 keeps this account for all machines.
 */
import { steadyMs } from '../../base/steady-clock.ts';
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import type { LauncherOrder, RankNotice } from './messages.ts';
import { type LostRank, lostRank, type Recovery } from './recovery.ts';

/** How often to check ranks that are awaited. */
const LOOK_MS = 250;

/** Controls the ranks of all machines. */
export interface ReplacementHost {
  /** Starts a lost rank again, as soon as it has ended completely. */
  start(rank: number): void;
  /** Ends all waits that began before this generation. */
  interrupt(generation: number): void;
  /** Where the ranks of a generation meet. */
  meet(): Promise<Omit<Extract<LauncherOrder, { kind: 'generation' }>, 'kind' | 'number'>>;
  tell(rank: number, order: LauncherOrder): void;
  /** A rank is not ready in time: it counts as lost. */
  late(rank: number): void;
  /** Ends ranks that are stopped: the others would wait for them. */
  killStopped(): void;
  /** Whether ranks may be started again; counts it if so. */
  mayReplace(): boolean;
  /** How often ranks were started again, and how often they may be. */
  readonly count: () => number;
  readonly of: number;
  recovered(recovery: Recovery): void;
}

/** `away`: it has not come to its loop yet. `ready`: it waits for a generation. `running`: it is in the present one. */
type RankState = 'away' | 'ready' | 'finished' | 'running';

/** What is known of a recovery under way. */
interface Fault {
  readonly lost: LostRank[];
  readonly atMs: number;
  readonly noticedMs: number;
  step: number | undefined;
  stoppedMs: number;
  readyMs: number;
  resumedAt: number | undefined;
  restoredMs: number;
  readonly restored: Set<number>;
  readonly repeated: Set<number>;
}

/** The states of all ranks, and the generations that they train in. */
export class Replacement {
  private readonly host: ReplacementHost;
  private readonly states: RankState[];
  private generation = 0;
  /** Whether the present generation was told to the ranks. */
  private begun = false;
  /** Whether the script has come to its loop. */
  private used = false;
  private over = false;
  private fault: Fault | undefined;
  private timer: NodeJS.Timeout | undefined;
  private readonly limitMs: number;
  /** Since when each rank is awaited, where it is. */
  private readonly since: number[] = [];

  constructor(ranks: number, limitMs: number, host: ReplacementHost) {
    this.host = host;
    this.limitMs = limitMs;
    this.states = Array.from({ length: ranks }, () => 'away');
  }

  /** Ranks have failed for one reason. Whether they are started again, instead of ending all. */
  lost(failures: readonly RankFailure[], places: readonly RankPlace[]): boolean {
    if (!this.used || this.over || failures.some(({ code }) => code === STATE_LOST)) return false;
    if (!this.host.mayReplace()) return false;
    const first = failures[0]?.atMs ?? steadyMs();
    this.interrupt(first);
    for (const failure of failures) {
      const { rank } = failure;
      this.fault?.lost.push(
        lostRank(
          failure,
          places.find((place) => place.rank === rank),
        ),
      );
      this.states[rank] = 'away';
      this.since[rank] = steadyMs();
      this.host.start(rank);
    }
    return true;
  }

  /** A rank has sent a message. */
  heard(rank: number, notice: RankNotice): void {
    if (notice.kind === 'ready') this.ready(rank, notice);
    else if (notice.generation === this.generation && this.begun) {
      if (notice.kind === 'restored') this.restored(rank, notice);
      else this.fault?.repeated.add(rank);
      this.check();
    }
  }

  /** Whether others wait in their loops for a rank that has not come to its own. */
  awaits(rank: number): boolean {
    return this.used && !this.over && !this.begun && this.states[rank] === 'away';
  }

  close(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.report();
  }

  private ready(rank: number, notice: Extract<RankNotice, { kind: 'ready' }>): void {
    this.used = true;
    // Of an earlier generation: it was told of this one already.
    if (this.begun && notice.generation !== this.generation) return;
    if (this.begun && !notice.finished) this.interrupt(notice.atMs);
    this.states[rank] = notice.finished ? 'finished' : 'ready';
    if (this.fault !== undefined && !this.begun) {
      this.fault.stoppedMs = Math.max(this.fault.stoppedMs, notice.generation < 0 ? 0 : notice.atMs);
      if (notice.step !== null) this.fault.step = Math.max(this.fault.step ?? 0, notice.step);
    }
    if (this.states.every((state) => state === 'finished')) this.end();
    else if (!this.begun && this.states.every((state) => state === 'ready' || state === 'finished')) void this.begin();
    else if (!this.begun) this.watch();
  }

  private restored(rank: number, notice: Extract<RankNotice, { kind: 'restored' }>): void {
    const { fault } = this;
    if (fault === undefined) return;
    fault.restored.add(rank);
    fault.resumedAt = notice.step;
    fault.restoredMs = Math.max(fault.restoredMs, notice.atMs);
    const i = fault.lost.findLastIndex((one) => one.rank === rank);
    if (i >= 0 && notice.from !== '') fault.lost[i] = { ...fault.lost[i]!, from: notice.from };
  }

  /** The present generation is over, if it has begun. */
  private interrupt(atMs: number): void {
    const noticedMs = steadyMs();
    this.fault ??= {
      ...{ lost: [], atMs, noticedMs, step: undefined, resumedAt: undefined, stoppedMs: 0, readyMs: 0, restoredMs: 0 },
      ...{ restored: new Set(), repeated: new Set() },
    };
    this.fault.restored.clear();
    this.fault.repeated.clear();
    if (!this.begun) return;
    this.begun = false;
    this.generation++;
    this.states.forEach((state, rank) => {
      if (state !== 'running') return;
      this.states[rank] = 'away';
      this.since[rank] = noticedMs;
    });
    this.host.interrupt(this.generation);
    this.watch();
  }

  /** From now on ranks are awaited. */
  private watch(): void {
    if (this.timer !== undefined) return;
    const now = steadyMs();
    this.states.forEach((state, rank) => {
      if (state === 'away') this.since[rank] ??= now;
    });
    this.timer = setInterval(() => this.look(), LOOK_MS);
  }

  /** While ranks are awaited: each has the whole time limit, also one that was started again meanwhile. */
  private look(): void {
    this.host.killStopped();
    const now = steadyMs();
    this.states.forEach((state, rank) => {
      if (state !== 'away' || now - (this.since[rank] ?? now) < this.limitMs) return;
      this.since[rank] = now;
      this.host.late(rank);
    });
  }

  /** All ranks are ready. */
  private async begin(): Promise<void> {
    this.begun = true;
    clearInterval(this.timer);
    this.timer = undefined;
    const number = this.generation;
    this.states.fill('running');
    if (this.fault !== undefined) this.fault.readyMs = steadyMs();
    const place = await this.host.meet();
    // One may have been lost meanwhile; the others still have to be told, so that they become ready again.
    this.states.forEach((_, rank) => this.host.tell(rank, { kind: 'generation', number, ...place }));
  }

  /** All ranks have done all steps. */
  private end(): void {
    this.over = true;
    this.report();
    this.generation++;
    this.begun = false;
    this.states.forEach((_, rank) => {
      this.states[rank] = 'away';
      this.host.tell(rank, { kind: 'end' });
    });
  }

  private check(): void {
    if (this.fault?.repeated.size === this.states.length) this.report();
  }

  private report(): void {
    const { fault } = this;
    if (fault === undefined || fault.resumedAt === undefined) return;
    this.fault = undefined;
    const { lost, atMs, step, resumedAt } = fault;
    const since = (ms: number): number => Math.max(0, (ms === 0 ? steadyMs() : ms) - atMs);
    this.host.recovered({
      ...{ count: this.host.count(), of: this.host.of, lost, step, resumedAt, atMs, generation: this.generation },
      noticedAfterMs: since(fault.noticedMs),
      stoppedAfterMs: since(fault.stoppedMs),
      readyAfterMs: since(fault.readyMs),
      repairedAfterMs: since(fault.restoredMs),
      repeatedMs: Math.max(0, steadyMs() - (fault.restoredMs === 0 ? steadyMs() : fault.restoredMs)),
    });
  }
}

/** The error code of a rank that found no copy of a lost rank's state: all ranks start again. */
const STATE_LOST = 'STATE_LOST';
