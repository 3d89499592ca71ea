/** @file What the launchers of several machines exchange: that all are ready, which ranks failed, and where all ranks were. */

import { steadyMs } from '../../base/steady-clock.ts';
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import type { LauncherOrder, RankNotice } from '../replacement/messages.ts';

/** How a machine takes part. */
export interface LinkOptions {
  readonly nnodes: number;
  readonly nodeRank: number;
  /** Ranks of each machine. */
  readonly ranks: number;
  readonly host: string;
  /** The port of the launchers; that of rank 0 is one less. */
  readonly port: number;
  /** The secret that all launchers of this run share. */
  readonly secret: string;
  /** The network interface on which machine 0 listens, where that does not follow from `host`. */
  readonly networkInterface?: string | undefined;
  /** How often ranks were started again so far; what machine 0 says counts. */
  readonly restarts?: (() => number) | undefined;
  /** How long to wait for the others. */
  readonly joinMs: number;
  /** How long a machine may take to end after a failure, before it is counted as gone. */
  readonly endMs: number;
}

/** How the ranks of a machine, or of all machines, have ended. */
export interface MachineReport {
  readonly failures: readonly RankFailure[];
  /** Where the ranks were at the first failure. */
  readonly places: readonly RankPlace[];
}

/** How all machines have ended. */
export interface WholeReport extends MachineReport {
  /** All start their ranks again. */
  readonly again: boolean;
}

/** The callbacks for messages of other machines. */
export interface LinkEvents {
  /** A rank of another machine has failed, or a machine is gone. */
  failed(failure: RankFailure): void;
  /** Machine 0 only: ranks of another machine are lost. Whether they are started again, instead of ending all. */
  lost?(failures: readonly RankFailure[], places: readonly RankPlace[]): boolean;
  /** Machine 0 only: a rank of another machine has reported how far it is. */
  notice?(rank: number, notice: RankNotice): void;
  /** The other machines: an order of machine 0 for one of their ranks, or for all. */
  command?(command: MachineCommand): void;
}

/** An order of machine 0 for ranks of another machine, which are lost, late, or have to reconnect. */
export type MachineCommand =
  | { readonly kind: 'start'; readonly rank: number; readonly restarts: number }
  | { readonly kind: 'kill'; readonly rank: number }
  | { readonly kind: 'interrupt'; readonly generation: number }
  | { readonly kind: 'order'; readonly rank: number; readonly order: LauncherOrder };

/** The connection of one launcher to all others. */
export interface Link {
  /** A number that identifies this run, the same on all machines. */
  readonly run: string;
  /** How often ranks were started again when this machine joined, as machine 0 counts. */
  readonly restarts: number;
  /** Tells the others that a rank failed here. */
  failed(failure: RankFailure): void;
  /** Asks machine 0 what to do about a rank that is lost here. */
  lost(failure: RankFailure, places: readonly RankPlace[]): void;
  /** Passes a report of a rank of this machine on to machine 0. */
  notice(rank: number, notice: RankNotice): void;
  /** Machine 0 only: tells the machine of a rank, or all machines. False where that machine is gone. */
  command(command: MachineCommand): boolean;
  /** All ranks of this machine have ended; returns when those of all machines have. */
  over(report: MachineReport, mayRestart?: boolean): Promise<WholeReport>;
  close(): void;
}

/** From a machine to machine 0. */
export type GuestMessage =
  | { readonly kind: 'beat' }
  | { readonly kind: 'failed'; readonly failure: RankFailure }
  | { readonly kind: 'lost'; readonly failure: RankFailure; readonly places: readonly RankPlace[] }
  | { readonly kind: 'notice'; readonly rank: number; readonly notice: RankNotice }
  | ({ readonly kind: 'over' } & MachineReport);

/** From machine 0 to the others. */
export type HubMessage =
  | { readonly kind: 'beat' }
  | { readonly kind: 'go'; readonly run: string; readonly restarts: number }
  | { readonly kind: 'failed'; readonly failure: RankFailure }
  | { readonly kind: 'command'; readonly command: MachineCommand }
  | ({ readonly kind: 'report' } & WholeReport);

/** The failure of a machine that is gone, under the number of its first rank. */
export function lostMachine(machine: number, ranks: number, why: string): RankFailure {
  const message = `machine ${machine} is gone with its ranks ${machine * ranks} to ${(machine + 1) * ranks - 1}: ${why}`;
  return { rank: machine * ranks, message, exitCode: 1, atMs: steadyMs(), ended: false };
}
