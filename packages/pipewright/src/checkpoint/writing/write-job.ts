/** @file The messages between a rank and its writing thread: jobs and their results. */
import type { PipelineErrorCode } from '../../base/errors.ts';
import type { Json } from '../format/codec.ts';
import type { SavedLayout, StoredState, StoredTensor } from '../format/manifest.ts';
import type { Chunk } from './snapshot-memory.ts';

/** A safetensors file to be written. */
export interface FileJob {
  readonly name: string;
  readonly header: Uint8Array;
  readonly chunks: Iterable<Chunk>;
  readonly tensors: readonly TensorJob[];
}

/** A tensor in a file, in the order of the file. */
export interface TensorJob {
  readonly key: string;
  readonly kind: StoredTensor['kind'];
  readonly dtype: string;
  readonly bytes: number;
  /** Of the whole. */
  readonly shape: readonly number[];
  /** The box that is stored; null where it is the whole. */
  readonly box: { readonly offset: readonly number[]; readonly shape: readonly number[] } | null;
}

/** Options of parameters, as JSON. */
export interface GroupJob {
  readonly optimizer: number;
  readonly group: number;
  readonly options: Json;
  readonly params: readonly string[];
}

/** What one rank adds to a checkpoint. */
export interface WriteJob {
  /** The folder of all checkpoints. */
  readonly folder: string;
  /** The name of this one in it. */
  readonly name: string;
  /** Tells this save from all others. */
  readonly attempt: string;
  readonly rank: number;
  readonly ranks: number;
  readonly step: number;
  readonly files: readonly FileJob[];
  readonly groups: readonly GroupJob[];
  readonly states: Readonly<Record<string, Json>>;
  /** States of all ranks, where they are known already. */
  readonly merged?: Readonly<Record<string, StoredState>> | undefined;
  /** For the first rank, which completes it. */
  readonly layout: SavedLayout;
  readonly schedule: string | null;
  readonly aliases: Readonly<Record<string, string>>;
  readonly isWhole: boolean;
  /** Small text files beside the weights, by name. */
  readonly texts: Readonly<Record<string, string>>;
  /** How many healthy checkpoints are kept; null: all. */
  readonly keep: number | null;
  readonly timeoutMs: number;
  /** Whether other ranks need not be waited for any more, because one is lost; the writing thread sets it. */
  readonly isGivenUp?: (() => boolean) | undefined;
}

/** How a save ended. */
export interface WriteResult {
  /** What went wrong; absent where nothing did. */
  readonly error?: { readonly code: PipelineErrorCode; readonly message: string };
  /** Whether all numbers are finite, on the ranks that were asked. */
  readonly finite: boolean;
  /** Bytes that this rank wrote. */
  readonly bytes: number;
  /** Time to write and sync this rank's files. */
  readonly writeMs: number;
  /** Time until the checkpoint was complete. */
  readonly totalMs: number;
}

/** The result of a save that failed. */
export function failedSave(code: PipelineErrorCode, message: string, totalMs: number = 0): WriteResult {
  return { error: { code, message }, finite: true, bytes: 0, writeMs: 0, totalMs };
}
