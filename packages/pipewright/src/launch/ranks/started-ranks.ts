/** @file What launching knows of ranks under way, be they threads or processes. */

import type { StatusBoard } from '../../status/board.ts';
import type { LauncherOrder, RankNotice } from '../replacement/messages.ts';
import type { RankFailure } from './rank-failure.ts';
import type { LineSink } from './rank-output.ts';

/** How to start the ranks of this machine. */
export interface StartOptions {
  readonly count: number;
  /** The number of the first of them among all ranks. */
  readonly first: number;
  /** The script, as a file: URL. */
  readonly script: string;
  readonly args: readonly string[];
  readonly data: unknown;
  readonly board: StatusBoard;
  /** More variables for each rank, by its place on this machine. */
  readonly env: (local: number) => Readonly<Record<string, string>>;
  /** Cores for the operators of each rank. */
  readonly threadsPerRank: number;
  readonly graceMs: number;
  /** Whether a rank that is lost may be started again alone. */
  readonly replaces: boolean;
}

/** What a launcher hears of its ranks. */
export interface RankEvents {
  readonly line: LineSink;
  /** A rank has failed; it may not have ended yet. */
  failed(failure: RankFailure): void;
  /** A rank has ended; `value` is what its `main` returned. */
  ended(rank: number, value: unknown): void;
  /** A rank that trains with `trainLoop` has said how far it is. */
  notice(rank: number, notice: RankNotice): void;
}

/** Ranks under way. */
export interface StartedRanks {
  /** Process numbers by place on this machine; empty for threads. */
  readonly pids: readonly number[];
  /** Ranks whose process is stopped, as by SIGSTOP. */
  stopped(): ReadonlySet<number>;
  /** Asks those that are still there to end, or to stop and continue. Threads are told that their waits are over. */
  signal(name: NodeJS.Signals): void;
  /** Ends those that are still there, blocked or not. */
  kill(): void;
  /** Ends one of them. */
  killRank(rank: number): void;
  /** Starts one again that has ended. */
  restart(rank: number): void;
  /** Tells one of them what to do. */
  tell(rank: number, order: LauncherOrder): void;
  /** Ends all waits that began before a generation. */
  interrupt(generation: number): void;
  /** Makes a place where the threads of the next generation meet; processes meet at a port. */
  meet(): { readonly group?: string };
  /** Nothing of them is left: gives back what was needed to watch them. */
  release(): void;
}
