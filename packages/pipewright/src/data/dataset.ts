/** @file Datasets: samples by index, or one after the other. */
import type { Tensor } from '@pipewright/torch';
import { show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/** Where worker threads find a dataset: a module that exports `dataset(data)`, and what it is called with. */
export interface DatasetModule {
  /** A file: URL. The module may also export `collateFn(samples)`. */
  readonly module: URL | string;
  /** Plain data, copied to every worker. */
  readonly data?: unknown;
}

/**
 * Samples by index. `getItem` may return a promise; then the loader needs workers, or `for await`.
 *
 * @example class Squares extends Dataset<number> { readonly length = 10; getItem(i: number) { return i * i; } }
 */
export abstract class Dataset<Sample = unknown> {
  /** Number of samples. */
  abstract get length(): number;

  /** One sample. */
  abstract getItem(index: number): Sample | Promise<Sample>;

  /** A whole batch at once, where that is faster than samples that are collated. */
  getBatch?(indices: readonly number[]): unknown;

  /** How worker threads make this dataset again; without it only the thread that made it can read it. */
  get source(): DatasetModule | undefined {
    return undefined;
  }
}

/**
 * Samples one after the other, for data without an index. Every epoch iterates anew; on several replicas each one goes through
 * all of it and takes its share. With `stateDict` and `loadStateDict`, a run that is continued does not read what it has read.
 *
 * @example class Lines extends IterableDataset<string> { *[Symbol.iterator]() { yield 'a'; yield 'b'; } }
 */
export abstract class IterableDataset<Sample = unknown> {
  /** The samples of an epoch. */
  abstract [Symbol.iterator](): Iterator<Sample>;

  /** Where the iterator that was made last stands, as plain data. */
  stateDict?(): unknown;

  /** The next iterator begins there. */
  loadStateDict?(state: unknown): void;

  /** How a worker thread makes this dataset again. */
  get source(): DatasetModule | undefined {
    return undefined;
  }
}

/** Rows of tensors of the same length. @example new TensorDataset(inputs, targets).getItem(3) // [inputs row, targets row] */
export class TensorDataset extends Dataset<Tensor[]> {
  readonly tensors: readonly Tensor[];

  constructor(...tensors: Tensor[]) {
    super();
    const [first] = tensors;
    if (first === undefined || tensors.some((one) => one.dim() === 0 || one.size(0) !== first.size(0)))
      throw new PipelineError(
        'BAD_INPUT',
        `TensorDataset: the tensors have ${tensors.map((one) => (one.dim() === 0 ? 'no' : one.size(0))).join(', ') || 'no'} rows; give one or more with the same number of rows`,
      );
    this.tensors = tensors;
  }

  get length(): number {
    return (this.tensors[0] as Tensor).size(0);
  }

  getItem(index: number): Tensor[] {
    return this.tensors.map((one) => one.select(0, index));
  }
}

/** Some samples of another dataset. @example new Subset(dataset, [0, 2, 4]) */
export class Subset<Sample> extends Dataset<Sample> {
  readonly dataset: Dataset<Sample>;
  readonly indices: readonly number[];

  constructor(dataset: Dataset<Sample>, indices: readonly number[]) {
    super();
    this.dataset = dataset;
    this.indices = [...indices];
    const wrong = indices.find((index) => !Number.isInteger(index) || index < 0 || index >= dataset.length);
    if (wrong !== undefined)
      throw new PipelineError(
        'BAD_INPUT',
        `Subset: there is no sample ${show(wrong)}; the dataset has ${dataset.length}`,
      );
  }

  get length(): number {
    return this.indices.length;
  }

  getItem(index: number): Sample | Promise<Sample> {
    return this.dataset.getItem(this.indices[index] as number);
  }
}

/** Datasets one behind the other. @example new ConcatDataset([first, second]) */
export class ConcatDataset<Sample> extends Dataset<Sample> {
  readonly datasets: readonly Dataset<Sample>[];
  readonly length: number;

  constructor(datasets: readonly Dataset<Sample>[]) {
    super();
    this.datasets = [...datasets];
    this.length = datasets.reduce((sum, { length }) => sum + length, 0);
  }

  getItem(index: number): Sample | Promise<Sample> {
    let at = index;
    for (const dataset of this.datasets) {
      if (at < dataset.length) return dataset.getItem(at);
      at -= dataset.length;
    }
    throw new PipelineError('BAD_INPUT', `ConcatDataset: there is no sample ${index}; there are ${this.length}`);
  }
}
