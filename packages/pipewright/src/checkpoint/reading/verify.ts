/** @file Verifies a whole checkpoint, every byte of every file against the manifest, and summarizes checkpoints. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { scope } from '@pipewright/torch';
import { checkPath } from '../../base/checks.ts';
import { findCheckpoint, listCheckpoints, readCheckpoint } from '../format/folder.ts';
import type { Manifest } from '../format/manifest.ts';
import { CheckpointReader } from './reader.ts';

/** What is wrong with a file of a checkpoint. */
export interface CheckpointProblem {
  readonly file: string;
  readonly message: string;
}

/**
 * Reads all of a checkpoint and compares it with its manifest; the result names every file that is not as it was written. A folder
 * of checkpoints gives the one that `latest` names.
 *
 * @example verifyCheckpoint('runs/gpt') // []
 */
export function verifyCheckpoint(folder: string): CheckpointProblem[] {
  checkPath('verifyCheckpoint', 'the folder', folder);
  using reader = new CheckpointReader(findCheckpoint(folder));
  const { manifest, path } = reader;
  const problems = new Map<string, string>();
  const note = (file: string, error: unknown): void => {
    if (!problems.has(file)) problems.set(file, error instanceof Error ? error.message : String(error));
  };
  for (const name of Object.keys(manifest.files)) {
    if (name.endsWith('.safetensors')) continue;
    try {
      scope(() => reader.checkText(name));
    } catch (error) {
      note(name, error);
    }
  }
  const inTensors = new Set<string>();
  for (const [key, tensor] of Object.entries(manifest.tensors))
    for (const piece of tensor.pieces) {
      inTensors.add(piece.file);
      if (problems.has(piece.file)) continue;
      try {
        const local = piece.shape ?? tensor.shape;
        scope(() => reader.check(key, { shape: tensor.shape, local, offset: piece.offset ?? null }));
      } catch (error) {
        note(piece.file, error);
      }
    }
  for (const name of Object.keys(manifest.files))
    if (name.endsWith('.safetensors') && !inTensors.has(name) && !existsSync(join(path, name)))
      note(name, new Error(`${join(path, name)}: the file is missing`));
  return [...problems].map(([file, message]) => ({ file, message }));
}

/** A checkpoint in a few words. */
export interface CheckpointSummary {
  readonly name: string;
  readonly step: number;
  readonly finite: boolean;
  readonly bytes: number;
  readonly files: number;
  readonly ranks: number;
  readonly stages: number;
  readonly schedule: string | null;
  /** Whether other programs can read the weights as they are. */
  readonly isWhole: boolean;
}

/** All complete checkpoints of a folder, oldest step first. @example summarizeCheckpoints('runs/gpt').map(({ step }) => step) */
export function summarizeCheckpoints(folder: string): CheckpointSummary[] {
  checkPath('summarizeCheckpoints', 'the folder', folder);
  return listCheckpoints(folder).map((name) => summarize(name, readCheckpoint(join(folder, name)).manifest));
}

/** A manifest in a few words. */
function summarize(name: string, manifest: Manifest): CheckpointSummary {
  const { step, finite, files, layout, schedule, tensors } = manifest;
  return {
    name,
    step,
    finite,
    bytes: Object.values(files).reduce((sum, file) => sum + file.bytes, 0),
    files: Object.keys(files).length,
    ranks: layout.ranks,
    stages: layout.stages,
    schedule,
    isWhole: Object.values(tensors).every(({ kind, pieces }) => kind === 'optimizer' || pieces.length === 1),
  };
}
