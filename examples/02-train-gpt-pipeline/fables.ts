/** @file The text in ../data as numbers, one per character. */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { Generator, randint, stack, type Tensor, tensor } from '@pipewright/torch';

/** The fables, and batches of them. */
export class Fables {
  readonly characters: readonly string[];
  private readonly data: Tensor;
  private readonly random = new Generator();

  /** Batches depend on the seed only, so all ranks draw the same ones. */
  constructor(seed: number, device: string) {
    const text = readFileSync(findText(), 'utf8');
    this.characters = [...new Set(text)].sort();
    this.data = tensor(this.encode(text), { dtype: 'int64', device });
    this.random.manualSeed(seed);
  }

  /** Numbers of characters. */
  encode(text: string): number[] {
    return Array.from(text, (character) => this.characters.indexOf(character));
  }

  /** Characters of numbers. */
  decode(ids: readonly number[]): string {
    return ids.map((id) => this.characters[id]).join('');
  }

  /** Random pieces of the text, and the same moved on by one character. */
  nextBatch(rows: number, length: number): [inputs: Tensor, targets: Tensor] {
    const most = this.data.numel() - length - 1;
    const starts = randint(0, most, [rows], { generator: this.random }).toArray() as number[];
    const cut = (by: number): Tensor =>
      stack(starts.map((start) => this.data.slice([start + by, start + by + length])));
    return [cut(0), cut(1)];
  }
}

/** The text lies beside the sources; this file may run from dist. */
function findText(): string {
  const places = ['../data/fables.txt', '../../data/fables.txt'].map((path) => join(import.meta.dirname, path));
  return places.find((place) => statSync(place, { throwIfNoEntry: false }) !== undefined) ?? (places[0] as string);
}
