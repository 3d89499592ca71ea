/**
 * @file Samplers: which samples an epoch has, and in which order. Each is a function of (seed, epoch, position), so that a run can
 * continue in the middle of an epoch, on any number of replicas, with two numbers as its state.
 */
import { checkArgument, checkCount, checkOptions, checkRequired, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { below, digest, Permutation, uniform } from './order.ts';

/** Anything with a length: a dataset, an array. */
export interface Sized {
  readonly length: number;
}

/**
 * The base of samplers. Iterating returns the indices of the epoch that `setEpoch` has set.
 *
 * @example class Evens extends Sampler { readonly length = 5; indexAt(epoch: number, position: number) { return 2 * position; } describe() { return 'Evens'; } }
 */
export abstract class Sampler implements Iterable<number> {
  private epochValue = 0;

  /** Samples of an epoch. */
  abstract get length(): number;

  /** The index of the sample at a position of an epoch. */
  abstract indexAt(epoch: number, position: number): number;

  /** The sampler in one line: saved with the state of a loader, and compared when it is loaded. */
  abstract describe(): string;

  /** What `describe` of earlier versions returned for the same order: states that were saved with it load too. Default: none. */
  describedBefore(): string | null {
    return null;
  }

  /** The epoch that iterating goes through. */
  get epoch(): number {
    return this.epochValue;
  }

  /** Sets the epoch that iterating goes through. A loader counts epochs itself. */
  setEpoch(epoch: number): void {
    this.epochValue = checkCount(`${this.constructor.name}.setEpoch`, 'epoch', epoch, 0);
  }

  *[Symbol.iterator](): Iterator<number> {
    const epoch = this.epochValue;
    for (let position = 0; position < this.length; position++) yield this.indexAt(epoch, position);
  }

  toString(): string {
    return this.describe();
  }
}

/** All samples in their order. @example new SequentialSampler(dataset) */
export class SequentialSampler extends Sampler {
  readonly length: number;

  constructor(source: Sized) {
    super();
    this.length = lengthOf('SequentialSampler', source);
  }

  indexAt(_epoch: number, position: number): number {
    return position;
  }

  describe(): string {
    return `SequentialSampler(${this.length})`;
  }
}

/** The options of random samplers. */
export interface RandomSamplerOptions {
  /** The seed of the order, which also depends on the epoch. Default 0. */
  readonly seed?: number | undefined;
}

/** All samples, each once an epoch and in a new order every epoch; or drawn with replacement. @example new RandomSampler(dataset, { seed: 1 }) */
export class RandomSampler extends Sampler {
  readonly length: number;
  readonly seed: number;
  readonly replacement: boolean;
  private readonly size: number;
  private readonly permutation: Permutation;

  constructor(
    source: Sized,
    options: RandomSamplerOptions & {
      readonly replacement?: boolean | undefined;
      /** Samples of an epoch. Default: all. */
      readonly numSamples?: number | undefined;
    } = {},
  ) {
    super();
    checkOptions('RandomSampler', options, ['seed', 'replacement', 'numSamples']);
    this.size = lengthOf('RandomSampler', source);
    this.seed = checkSeed('RandomSampler', options.seed);
    this.replacement = options.replacement === true;
    this.length = checkCount('RandomSampler', 'numSamples', options.numSamples ?? this.size, 0);
    if (!this.replacement && this.length > this.size)
      throw new PipelineError(
        'BAD_OPTION',
        `RandomSampler: numSamples is ${this.length}, but there are ${this.size} samples; say replacement: true, or train for more epochs`,
      );
    this.permutation = new Permutation(this.size, this.seed);
  }

  indexAt(epoch: number, position: number): number {
    return this.replacement ? below(this.size, this.seed, epoch, position) : this.permutation.at(epoch, position);
  }

  describe(): string {
    const kind = this.replacement ? ', with replacement' : '';
    return `RandomSampler(${this.length} of ${this.size}, seed ${this.seed}${kind})`;
  }
}

/** The samples of a list, in a new order every epoch. @example new SubsetRandomSampler([0, 2, 4], { seed: 1 }) */
export class SubsetRandomSampler extends Sampler {
  readonly indices: readonly number[];
  readonly seed: number;
  private indicesDigest: string | null = null;
  private readonly permutation: Permutation;

  constructor(indices: readonly number[], options: RandomSamplerOptions = {}) {
    super();
    checkOptions('SubsetRandomSampler', options, ['seed']);
    const areIndices = Array.isArray(indices) && [...indices].every((index) => Number.isInteger(index) && index >= 0);
    checkArgument('SubsetRandomSampler', areIndices, ['the indices', indices], 'an array of whole numbers from 0 on');
    this.indices = [...indices];
    this.seed = checkSeed('SubsetRandomSampler', options.seed);
    this.permutation = new Permutation(indices.length, this.seed);
  }

  get length(): number {
    return this.indices.length;
  }

  indexAt(epoch: number, position: number): number {
    return this.indices[this.permutation.at(epoch, position)]!;
  }

  describe(): string {
    this.indicesDigest ??= digest(this.indices);
    return `SubsetRandomSampler(${this.length}, seed ${this.seed}, indices ${this.indicesDigest})`;
  }

  override describedBefore(): string {
    return `SubsetRandomSampler(${this.length}, seed ${this.seed})`;
  }
}

/** Samples drawn with replacement, each with a weight. @example new WeightedRandomSampler([1, 3], 100, { seed: 1 }) */
export class WeightedRandomSampler extends Sampler {
  readonly length: number;
  readonly seed: number;
  private readonly sums: Float64Array;
  private weightsDigest: string | null = null;

  constructor(weights: readonly number[], numSamples: number, options: RandomSamplerOptions = {}) {
    super();
    checkOptions('WeightedRandomSampler', options, ['seed']);
    this.length = checkCount('WeightedRandomSampler', 'numSamples', numSamples, 0);
    this.seed = checkSeed('WeightedRandomSampler', options.seed);
    const isList = Array.isArray(weights) || ArrayBuffer.isView(weights);
    checkArgument('WeightedRandomSampler', isList, ['the weights', weights], 'an array of numbers');
    let sum = 0;
    this.sums = Float64Array.from(weights, (weight, i) => {
      if (!(typeof weight === 'number' && weight >= 0 && weight < Number.POSITIVE_INFINITY))
        throw new PipelineError(
          'BAD_OPTION',
          `WeightedRandomSampler: weight ${i} is ${show(weight)}; give a number from 0 on`,
        );
      sum += weight;
      return sum;
    });
    if (!(sum > 0))
      throw new PipelineError('BAD_OPTION', 'WeightedRandomSampler: the weights add up to 0; give one above 0');
  }

  indexAt(epoch: number, position: number): number {
    const wanted = uniform(this.seed, epoch, position) * this.sums.at(-1)!;
    let [from, to] = [0, this.sums.length - 1];
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (this.sums[middle]! > wanted) to = middle;
      else from = middle + 1;
    }
    return from;
  }

  describe(): string {
    this.weightsDigest ??= digest(this.sums);
    return `WeightedRandomSampler(${this.length} of ${this.sums.length}, seed ${this.seed}, weights ${this.weightsDigest})`;
  }

  override describedBefore(): string {
    return `WeightedRandomSampler(${this.length} of ${this.sums.length}, seed ${this.seed})`;
  }
}

/** The options of a distributed sampler. */
export interface DistributedSamplerOptions extends RandomSamplerOptions {
  /** Number of replicas that share an epoch. */
  readonly numReplicas: number;
  /** This one among them. */
  readonly rank: number;
  /** A new order every epoch (default), or that of the dataset. */
  readonly shuffle?: boolean | undefined;
}

/**
 * The share of one replica. Where PyTorch repeats samples to make shares equal, here every sample comes exactly once. A loader
 * gives the replicas consecutive blocks of each batch, so that together they have the batch that one loader would have.
 *
 * @example new DistributedSampler(dataset, { numReplicas: mesh.size('dp'), rank: mesh.getLocalRank('dp'), seed: 1 })
 */
export class DistributedSampler extends Sampler {
  readonly numReplicas: number;
  readonly rank: number;
  /** The order that all replicas share. */
  readonly whole: Sampler;

  constructor(source: Sized | Sampler, options: DistributedSamplerOptions) {
    super();
    checkRequired('DistributedSampler', options, ['numReplicas', 'rank', 'shuffle', 'seed']);
    this.numReplicas = checkCount('DistributedSampler', 'numReplicas', options.numReplicas);
    this.rank = checkCount('DistributedSampler', 'rank', options.rank, 0);
    if (this.rank >= this.numReplicas)
      throw new PipelineError(
        'BAD_OPTION',
        `DistributedSampler: rank ${this.rank} of ${this.numReplicas} replicas; they are numbered 0 to ${this.numReplicas - 1}`,
      );
    if (source instanceof Sampler) this.whole = source;
    else if (options.shuffle === false) this.whole = new SequentialSampler(source);
    else this.whole = new RandomSampler(source, { seed: options.seed });
  }

  get length(): number {
    return Math.ceil((this.whole.length - this.rank) / this.numReplicas);
  }

  indexAt(epoch: number, position: number): number {
    return this.whole.indexAt(epoch, this.rank + position * this.numReplicas);
  }

  describe(): string {
    return `replica ${this.rank} of ${this.numReplicas} of ${this.whole.describe()}`;
  }

  override describedBefore(): string | null {
    const before = this.whole.describedBefore();
    return before === null ? null : `replica ${this.rank} of ${this.numReplicas} of ${before}`;
  }
}

/** Batches of the indices of a sampler. @example [...new BatchSampler(new SequentialSampler(data), 4, false)] */
export class BatchSampler implements Iterable<number[]> {
  readonly sampler: Sampler;
  readonly batchSize: number;
  readonly dropLast: boolean;

  constructor(sampler: Sampler, batchSize: number, dropLast: boolean) {
    checkArgument('BatchSampler', sampler instanceof Sampler, ['the sampler', sampler], 'a Sampler');
    this.sampler = sampler;
    this.batchSize = checkCount('BatchSampler', 'batchSize', batchSize);
    this.dropLast = dropLast;
  }

  get length(): number {
    return (this.dropLast ? Math.floor : Math.ceil)(this.sampler.length / this.batchSize);
  }

  *[Symbol.iterator](): Iterator<number[]> {
    let batch: number[] = [];
    for (const index of this.sampler) {
      batch.push(index);
      if (batch.length < this.batchSize) continue;
      yield batch;
      batch = [];
    }
    if (batch.length > 0 && !this.dropLast) yield batch;
  }
}

function lengthOf(where: string, source: Sized): number {
  const length: unknown = (source as Sized | null)?.length;
  if (Number.isSafeInteger(length) && (length as number) >= 0) return length as number;
  throw new PipelineError(
    'BAD_OPTION',
    `${where}: the dataset's length is ${show(length)}; give a dataset with a length`,
  );
}

function checkSeed(where: string, seed: number | undefined): number {
  return checkCount(where, 'seed', seed ?? 0, 0);
}
