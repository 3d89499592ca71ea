/** @file What the launchers of several machines tell each other: that all are there, who failed, and where all ranks were. */

import { steadyMs } from '../../base/steady-clock.ts';
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';

/** How a machine takes part. */
export interface NodeOptions {
  readonly nnodes: number;
  readonly nodeRank: number;
  /** Ranks of each machine. */
  readonly ranks: number;
  readonly host: string;
  /** The port of the launchers; that of rank 0 is one less. */
  readonly port: number;
  /** How long to wait for the others. */
  readonly joinMs: number;
  /** How long a machine may take to end after a failure, before it is counted as gone. */
  readonly endMs: number;
}

/** How the ranks of a machine, or of all machines, have ended. */
export interface NodeReport {
  readonly failures: readonly RankFailure[];
  /** Where the ranks were at the first failure. */
  readonly places: readonly RankPlace[];
}

/** What a launcher hears from other machines. */
export interface NodeEvents {
  /** A rank of another machine has failed, or a machine is gone. */
  failed(failure: RankFailure): void;
}

/** The connection of one launcher to all others. */
export interface NodeLink {
  /** Tells the others that a rank failed here. */
  failed(failure: RankFailure): void;
  /** All ranks of this machine have ended; returns when those of all machines have. */
  over(report: NodeReport): Promise<NodeReport>;
  close(): void;
}

/** From a machine to machine 0. */
export type NodeMessage =
  | { readonly kind: 'hello'; readonly node: number; readonly nnodes: number; readonly ranks: number }
  | { readonly kind: 'failed'; readonly failure: RankFailure }
  | ({ readonly kind: 'over' } & NodeReport);

/** From machine 0 to the others. */
export type HubMessage =
  | { readonly kind: 'go' }
  | { readonly kind: 'refused'; readonly why: string }
  | { readonly kind: 'failed'; readonly failure: RankFailure }
  | ({ readonly kind: 'report' } & NodeReport);

/** The failure of a machine that is gone, under the number of its first rank. */
export function lostNode(node: number, ranks: number, why: string): RankFailure {
  const message = `machine ${node} is gone with its ranks ${node * ranks} to ${(node + 1) * ranks - 1}: ${why}`;
  return { rank: node * ranks, message, exitCode: 1, atMs: steadyMs(), ended: false };
}
