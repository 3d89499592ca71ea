/** @file A folder of weights as Hugging Face stores them: one safetensors file, or several with an index. */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import {
  MappedFile,
  readSafetensorsHeader,
  type SafetensorsEntry,
  type SafetensorsHeader,
  type Tensor,
} from '@pipewright/torch';
import { PipelineError } from '../../base/errors.ts';
import { isPlainObject } from '../../base/tree.ts';
import { INDEX, isFileName, SINGLE } from '../format/file-names.ts';

/** A folder of weights, or one file of them; files are opened when a tensor of them is needed. */
export class WeightsFolder {
  readonly path: string;
  private readonly folder: string;
  /** The file of every tensor. */
  private readonly fileOf: ReadonlyMap<string, string>;
  private readonly open = new Map<string, { readonly mapped: MappedFile; readonly header: SafetensorsHeader }>();

  constructor(path: string) {
    this.path = path;
    const isFile = statSync(path, { throwIfNoEntry: false })?.isFile() === true;
    this.folder = isFile ? dirname(path) : path;
    if (isFile) this.fileOf = this.namesOf(basename(path));
    else if (existsSync(join(path, INDEX))) this.fileOf = readIndex(join(path, INDEX));
    else if (existsSync(join(path, SINGLE))) this.fileOf = this.namesOf(SINGLE);
    else
      throw new PipelineError(
        'NO_CHECKPOINT',
        `loadWeights: ${existsSync(path) ? `${path} has neither ${INDEX} nor ${SINGLE}` : `there is no ${resolve(path)}`}; give a folder with safetensors files, or one such file`,
        { path },
      );
  }

  /** Names of all tensors. */
  get names(): string[] {
    return [...this.fileOf.keys()];
  }

  /** The file's entry of a tensor; undefined if there is none of that name. */
  entry(name: string): SafetensorsEntry | undefined {
    const file = this.fileOf.get(name);
    if (file === undefined) return undefined;
    const entry = this.file(file).header.entries.get(name);
    if (entry !== undefined) return entry;
    throw new PipelineError(
      'BAD_CHECKPOINT',
      `${join(this.folder, file)}: it does not have '${name}', as ${INDEX} says`,
      {
        path: join(this.folder, file),
      },
    );
  }

  /** A tensor over the file. */
  read(name: string): Tensor {
    const entry = this.entry(name)!;
    return this.file(this.fileOf.get(name)!).mapped.tensor(entry);
  }

  dispose(): void {
    for (const { mapped } of this.open.values()) mapped.dispose();
    this.open.clear();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  private namesOf(file: string): Map<string, string> {
    return new Map([...this.file(file).header.entries.keys()].map((name) => [name, file]));
  }

  private file(name: string): { readonly mapped: MappedFile; readonly header: SafetensorsHeader } {
    let found = this.open.get(name);
    if (found === undefined) {
      const path = join(this.folder, name);
      found = { header: readSafetensorsHeader(path), mapped: MappedFile.open(path) };
      this.open.set(name, found);
    }
    return found;
  }
}

/** The file of every tensor, as an index says. */
function readIndex(path: string): Map<string, string> {
  const refuse = (why: string): PipelineError =>
    new PipelineError('BAD_CHECKPOINT', `${path}: not a sound index: ${why}; get the file again`, { path });
  let json: unknown;
  try {
    json = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path)));
  } catch (error) {
    throw refuse(`it is not JSON (${error instanceof Error ? error.message : String(error)})`);
  }
  const map: unknown = isPlainObject(json) ? (json as Record<string, unknown>)['weight_map'] : undefined;
  if (!isPlainObject(map)) throw refuse('it has no weight_map');
  for (const [name, file] of Object.entries(map))
    if (!isFileName(file)) throw refuse(`the file of '${name.slice(0, 100)}' is not a name of a file in its folder`);
  return new Map(Object.entries(map as Record<string, string>));
}

/** What lies in a folder and would be read instead of an index and its files, in words; null where nothing does. */
export function hiddenBy(path: string): string | null {
  return existsSync(join(path, SINGLE))
    ? `${path} has a ${SINGLE}, which tools of Hugging Face read instead of ${INDEX} and its files; give another folder, or remove it`
    : null;
}
