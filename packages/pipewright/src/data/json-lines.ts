/** @file JSON lines by number: the beginnings of lines are found once, their content is read when it is needed. */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { resolve } from 'node:path';
import { checkPath, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { builtInModule } from './built-in.ts';
import { Dataset, type DatasetModule } from './dataset.ts';

const CHUNK = 1 << 20;
const NEWLINE = 0x0a;

/** A file with a JSON value on every line; empty lines are passed over. @example new JsonLinesDataset('train.jsonl').getItem(0) */
export class JsonLinesDataset<Sample = unknown> extends Dataset<Sample> {
  readonly length: number;
  private readonly path: string;
  /** Where lines begin and end, in bytes. */
  private readonly begins: Float64Array;
  private readonly ends: Float64Array;
  /** Their numbers in the file, from 1 on. */
  private readonly numbers: Uint32Array;
  private file: number;

  constructor(path: string) {
    super();
    checkPath('JsonLinesDataset', 'the file', path);
    this.path = resolve(path);
    try {
      this.file = openSync(this.path, 'r');
    } catch (cause) {
      throw new PipelineError('BAD_DATASET', `JsonLinesDataset: ${(cause as Error).message}`, { path }, { cause });
    }
    if (!fstatSync(this.file).isFile()) {
      this.dispose();
      throw new PipelineError('BAD_DATASET', `JsonLinesDataset: ${path} is not a file`, { path });
    }
    const lines = findLines(this.file);
    this.length = lines.length;
    this.begins = Float64Array.from(lines, ([begin]) => begin);
    this.ends = Float64Array.from(lines, ([, end]) => end);
    this.numbers = Uint32Array.from(lines, ([, , number]) => number);
  }

  override get source(): DatasetModule {
    return { module: builtInModule, data: { kind: 'lines', path: this.path } };
  }

  getItem(index: number): Sample {
    const [begin, end] = [this.begins[index], this.ends[index]];
    if (begin === undefined || end === undefined)
      throw new PipelineError(
        'BAD_INPUT',
        `JsonLinesDataset: there is no line ${show(index)}; there are ${this.length}`,
      );
    const bytes = Buffer.alloc(end - begin);
    for (let at = 0; at < bytes.length; ) {
      const count = readSync(this.file, bytes, at, bytes.length - at, begin + at);
      if (count === 0)
        throw new PipelineError('BAD_DATASET', `JsonLinesDataset: ${this.path} was made shorter while it is read`);
      at += count;
    }
    try {
      return JSON.parse(bytes.toString('utf8')) as Sample;
    } catch (cause) {
      throw new PipelineError(
        'BAD_DATASET',
        `JsonLinesDataset: line ${this.numbers[index]} of ${this.path}: ${(cause as Error).message}`,
        { path: this.path, line: this.numbers[index] },
        { cause },
      );
    }
  }

  /** Closes the file. */
  dispose(): void {
    if (this.file >= 0) closeSync(this.file);
    this.file = -1;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

type Line = readonly [begin: number, end: number, number: number];

/** The lines of a file that are not blank. */
function findLines(file: number): Line[] {
  const { size } = fstatSync(file);
  const chunk = Buffer.alloc(CHUNK);
  const found: Line[] = [];
  let [begin, number, isBlank] = [0, 1, true];
  const end = (at: number): void => {
    if (!isBlank) found.push([begin, at, number]);
    begin = at + 1;
    number++;
    isBlank = true;
  };
  for (let at = 0; at < size; ) {
    const count = readSync(file, chunk, 0, CHUNK, at);
    if (count === 0) break;
    for (let i = 0; i < count; i++) {
      const byte = chunk[i]!;
      if (byte === NEWLINE) end(at + i);
      else if (isBlank && byte !== 0x20 && byte !== 0x0d && byte !== 0x09) isBlank = false;
    }
    at += count;
  }
  if (begin < size) end(size);
  return found;
}
