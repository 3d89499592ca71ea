/** @file Datasets: samples by index, or one after the other. */
import { Tensor } from '@pipewright/torch';
import { checkArgument, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/** How worker threads make a dataset: a module that exports `dataset(data)`, and the data. */
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
 * all of it and takes its share. With `stateDict` and `loadStateDict`, a continued run does not read earlier samples again.
 *
 * @example class Lines extends IterableDataset<string> { *[Symbol.iterator]() { yield 'a'; yield 'b'; } }
 */
export abstract class IterableDataset<Sample = unknown> {
  /** The samples of an epoch. */
  abstract [Symbol.iterator](): Iterator<Sample>;

  /** The position of the iterator that was made last, as plain data. */
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
    tensors.forEach((one, i) => {
      checkArgument('TensorDataset', one instanceof Tensor, [`argument ${i}`, one], 'a tensor');
    });
    const [first] = tensors;
    if (first === undefined || tensors.some((one) => one.dim() === 0 || one.size(0) !== first.size(0)))
      throw new PipelineError(
        'BAD_INPUT',
        `TensorDataset: the tensors have ${tensors.map((one) => (one.dim() === 0 ? 'no' : one.size(0))).join(', ') || 'no'} rows; give one or more with the same number of rows`,
      );
    this.tensors = tensors;
  }

  get length(): number {
    return this.tensors[0]!.size(0);
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
    checkDataset('Subset', 'the dataset', dataset);
    checkArgument('Subset', Array.isArray(indices), ['the indices', indices], 'an array of whole numbers');
    this.dataset = dataset;
    this.indices = [...indices];
    const wrong = this.indices.findIndex((index) => !Number.isInteger(index) || index < 0 || index >= dataset.length);
    if (wrong >= 0)
      throw new PipelineError(
        'BAD_INPUT',
        `Subset: there is no sample ${show(this.indices[wrong])}; the dataset has ${dataset.length}`,
      );
  }

  get length(): number {
    return this.indices.length;
  }

  getItem(index: number): Sample | Promise<Sample> {
    const found = this.indices[index];
    if (found === undefined)
      throw new PipelineError('BAD_INPUT', `Subset: there is no sample ${show(index)}; there are ${this.length}`);
    return this.dataset.getItem(found);
  }
}

/** Datasets one behind the other. @example new ConcatDataset([first, second]) */
export class ConcatDataset<Sample> extends Dataset<Sample> {
  readonly datasets: readonly Dataset<Sample>[];
  readonly length: number;

  constructor(datasets: readonly Dataset<Sample>[]) {
    super();
    checkArgument('ConcatDataset', Array.isArray(datasets), ['the argument', datasets], 'an array of datasets');
    this.datasets = [...datasets];
    this.datasets.forEach((dataset, i) => checkDataset('ConcatDataset', `dataset ${i}`, dataset));
    this.length = this.datasets.reduce((sum, { length }) => sum + length, 0);
  }

  getItem(index: number): Sample | Promise<Sample> {
    let at = Number.isInteger(index) && index >= 0 ? index : this.length;
    for (const dataset of this.datasets) {
      if (at < dataset.length) return dataset.getItem(at);
      at -= dataset.length;
    }
    throw new PipelineError('BAD_INPUT', `ConcatDataset: there is no sample ${show(index)}; there are ${this.length}`);
  }
}

function checkDataset(where: string, name: string, dataset: unknown): void {
  const { getItem, length } = (typeof dataset === 'object' && dataset !== null ? dataset : {}) as Partial<Dataset>;
  const isRight = typeof getItem === 'function' && Number.isSafeInteger(length) && length! >= 0;
  checkArgument(where, isRight, [name, dataset], 'a dataset with getItem and a length');
}
