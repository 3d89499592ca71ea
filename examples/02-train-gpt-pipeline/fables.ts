/** @file The text in ../data as numbers, one per character, and pieces of it as samples. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Tensor, tensor } from '@pipewright/torch';
import { Dataset } from 'pipewright';

/** Pieces of the fables, and the same moved on by one character; one begins at every character. */
export class Fables extends Dataset<[inputs: Tensor, targets: Tensor]> {
  readonly characters: readonly string[];
  readonly length: number;
  private readonly data: Tensor;
  private readonly context: number;

  constructor(context: number) {
    super();
    const text = readFileSync(findText(), 'utf8');
    this.characters = [...new Set(text)].sort();
    this.data = tensor(this.encode(text), { dtype: 'int64' });
    this.context = context;
    this.length = text.length - context;
  }

  getItem(index: number): [inputs: Tensor, targets: Tensor] {
    const cut = (from: number): Tensor => this.data.slice([from, from + this.context]);
    return [cut(index), cut(index + 1)];
  }

  /** Numbers of characters. */
  encode(text: string): number[] {
    return Array.from(text, (character) => this.characters.indexOf(character));
  }

  /** Characters of numbers. */
  decode(ids: readonly number[]): string {
    return ids.map((id) => this.characters[id]).join('');
  }
}

/** The text is next to the sources; this file may run from dist. */
function findText(): string {
  const path = join(import.meta.dirname, '../data/fables.txt');
  return existsSync(path) ? path : join(import.meta.dirname, '../../data/fables.txt');
}
