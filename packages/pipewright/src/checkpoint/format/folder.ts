/** @file A folder of checkpoints: finds those that are complete, and the one to load. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { checkPath, show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { LATEST, MANIFEST } from './file-names.ts';
import { type Manifest, parseManifest } from './manifest.ts';

const pattern = /^step-(\d{8,16})(?:-(\d+))?$/;

/** The name of the checkpoint of a step; `again` counts saves of the same step. */
export function checkpointName(step: number, again = 1): string {
  return `step-${String(step).padStart(8, '0')}${again === 1 ? '' : `-${again}`}`;
}

/** Step and count of a name; null where it is not the name of a checkpoint. */
function parseName(name: string): { readonly step: number; readonly again: number } | null {
  const [, step, again] = pattern.exec(name) ?? [];
  return step === undefined ? null : { step: Number(step), again: Number(again ?? 1) };
}

/** Names of checkpoints in order of step; those that are not complete included. */
export function namesIn(names: readonly string[]): string[] {
  return names
    .flatMap((name) => {
      const parsed = parseName(name);
      return parsed === null ? [] : [{ name, ...parsed }];
    })
    .sort((a, b) => a.step - b.step || a.again - b.again)
    .map(({ name }) => name);
}

/** The text of the file `latest`. */
export function latestText(name: string): string {
  return `${name} ${createHash('sha256').update(name).digest('hex').slice(0, 16)}\n`;
}

/** A checkpoint on the disk. */
export interface FoundCheckpoint {
  /** Its folder. */
  readonly path: string;
  readonly manifest: Manifest;
}

/** A name that is free for a new checkpoint of that step. */
export function freeName(folder: string, step: number): string {
  for (let again = 1; ; again++) {
    const name = checkpointName(step, again);
    if (!existsSync(join(folder, name))) return name;
  }
}

/**
 * The checkpoint to load: the folder itself where it is one, else what `latest` names, else the newest complete one.
 *
 * @example findCheckpoint('runs/gpt').manifest.step
 */
export function findCheckpoint(folder: string): FoundCheckpoint {
  if (typeof folder !== 'string' || folder === '')
    throw new PipelineError('BAD_ARGUMENT', `loadCheckpoint: the folder is ${show(folder)}; give its path`);
  if (existsSync(join(folder, MANIFEST))) return readCheckpoint(folder);
  const complete = listCheckpoints(folder);
  const latest = join(folder, LATEST);
  if (existsSync(latest)) {
    const text = readFileSync(latest, 'utf8');
    const name = text.split(' ')[0] ?? '';
    const others = complete.length > 0 ? `; complete are ${complete.join(', ')}: load one of them by its folder` : '';
    if (parseName(name) === null || text !== latestText(name))
      throw new PipelineError('BAD_CHECKPOINT', `${latest}: it was changed or damaged${others}`, { path: latest });
    if (!complete.includes(name))
      throw new PipelineError(
        'BAD_CHECKPOINT',
        `${latest}: it names ${name}, which is not there or not complete${others}`,
        { path: latest },
      );
    return readCheckpoint(join(folder, name));
  }
  const newest = complete.at(-1);
  if (newest === undefined)
    throw new PipelineError(
      'NO_CHECKPOINT',
      `there is no complete checkpoint in ${folder}; check the path, or start a new run`,
      { folder },
    );
  return readCheckpoint(join(folder, newest));
}

/** Whether a folder has a checkpoint that can be loaded. @example const resume = hasCheckpoint('runs/gpt') */
export function hasCheckpoint(folder: string): boolean {
  checkPath('hasCheckpoint', 'the folder', folder);
  return existsSync(join(folder, MANIFEST)) || listCheckpoints(folder).length > 0;
}

/** Names of the complete checkpoints of a folder, oldest step first. */
export function listCheckpoints(folder: string): string[] {
  checkPath('listCheckpoints', 'the folder', folder);
  if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true) return [];
  return namesIn(readdirSync(folder)).filter((name) => existsSync(join(folder, name, MANIFEST)));
}

/** A checkpoint by its own folder. */
export function readCheckpoint(path: string): FoundCheckpoint {
  checkPath('readCheckpoint', 'the folder', path);
  const file = join(path, MANIFEST);
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(file));
  } catch (error) {
    throw new PipelineError(
      'BAD_CHECKPOINT',
      `${file}: cannot be read (${error instanceof Error ? error.message : String(error)})`,
      { path: file },
      { cause: error },
    );
  }
  return { path, manifest: parseManifest(text, file) };
}
