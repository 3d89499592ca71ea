/**
 * @file The loader: batches of a dataset, read ahead by worker threads, with a state of a few numbers. Iterating goes through the
 * rest of the epoch from the loader's position, which `stateDict` returns.
 */
import { checkArgument, checkCount, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { BatchPlan, type Cursor, type Division } from './batch-plan.ts';
import { Dataset, type DatasetModule, IterableDataset } from './dataset.ts';
import { type CollateFn, isIterableDataset, isPromise, readBatch, StreamReader } from './reader.ts';
import { DistributedSampler, RandomSampler, Sampler, SequentialSampler } from './sampler.ts';
import { type Answered, WorkerPool } from './worker-pool.ts';

/** How batches are made of a dataset. */
export interface DataLoaderOptions {
  /** Samples of a batch, on each replica. Default 1. */
  readonly batchSize?: number | undefined;
  /** A new order every epoch. Default: that of the dataset. */
  readonly shuffle?: boolean | undefined;
  /** The seed of the order, with `shuffle`. Default 0. */
  readonly seed?: number | undefined;
  /** The order, instead of `shuffle`; a `DistributedSampler` also says which replica this is. */
  readonly sampler?: Sampler | undefined;
  /** Number of replicas that share the epochs, and this one among them; the same as a `DistributedSampler`. */
  readonly numReplicas?: number | undefined;
  readonly rank?: number | undefined;
  /** Leaves out the last samples of an epoch where they do not fill a batch. */
  readonly dropLast?: boolean | undefined;
  /** Fills the last batch of an epoch with the first samples of the next one, which begins after them: all batches are full. */
  readonly fillLast?: boolean | undefined;
  /** Makes a batch of samples. Default: `defaultCollate`. With workers it runs in the loader's thread; `collateFn` of a dataset's module runs in them. */
  readonly collateFn?: CollateFn | undefined;
  /** Threads that read ahead. Default 0: batches are read when they are asked for. */
  readonly numWorkers?: number | undefined;
  /** Batches that each worker reads ahead. Default 2. */
  readonly prefetchFactor?: number | undefined;
  /** Puts batches into pinned memory, from which copies to a GPU are asynchronous. Needs CUDA. */
  readonly pinMemory?: boolean | undefined;
}

/** The position of a loader, as plain data. */
export interface DataLoaderState {
  readonly version: 1;
  readonly epoch: number;
  /** Samples of the epoch that all replicas together have received. */
  readonly position: number;
  /** The order; null for iterable datasets. */
  readonly order: string | null;
  /** The state of an iterable dataset. */
  readonly dataset?: unknown;
}

/** A batch that was requested from a worker. */
interface Asked {
  readonly id: number;
  /** Unknown for streams until the batch has arrived. */
  readonly after: Cursor | null;
}

const optionNames = [
  'batchSize',
  'shuffle',
  'seed',
  'sampler',
  'numReplicas',
  'rank',
  'dropLast',
  'fillLast',
  'collateFn',
  'numWorkers',
  'prefetchFactor',
  'pinMemory',
];

/**
 * Batches of a dataset. After a loop that was left early, iterating continues at the same position, and so does a loader in another
 * process that has loaded its state: on any number of replicas and workers, no sample is lost and none comes twice.
 *
 * @example using loader = new DataLoader(dataset, { batchSize: 8, shuffle: true, seed: 1 }); for (const batch of loader) train(batch)
 */
export class DataLoader<Batch = unknown> implements Iterable<Batch>, AsyncIterable<Batch> {
  readonly dataset: Dataset | IterableDataset | DatasetModule;
  private readonly options: DataLoaderOptions;
  private readonly division: Division;
  private readonly numWorkers: number;
  private readonly prefetch: number;
  private cursor: Cursor = { epoch: 0, position: 0 };
  private streamState: unknown;
  private prepared: { readonly order: Sampler | null; readonly plan: BatchPlan | null } | null = null;
  private pool: WorkerPool | null = null;
  private stream: StreamReader | null = null;
  private readonly asked: Asked[] = [];
  private askedTo: Cursor | null = null;
  private turns = 0;

  constructor(dataset: Dataset | IterableDataset | DatasetModule, options: DataLoaderOptions = {}) {
    checkOptions('DataLoader', options, optionNames);
    if (typeof (dataset as unknown) !== 'object' || dataset === null) throw noDataset(dataset);
    const { collateFn } = options;
    const isFunction = collateFn === undefined || typeof collateFn === 'function';
    checkArgument('DataLoader', isFunction, ['collateFn', collateFn], 'a function of the samples of a batch');
    this.dataset = dataset;
    this.options = options;
    this.numWorkers = checkCount('DataLoader', 'numWorkers', options.numWorkers ?? 0, 0);
    this.prefetch = checkCount('DataLoader', 'prefetchFactor', options.prefetchFactor ?? 2);
    this.division = divisionOf(options);
    checkOrder(options);
    const isModule = !('getItem' in dataset) && !(Symbol.iterator in dataset);
    if (isModule && !('module' in dataset)) throw noDataset(dataset);
    if (isModule && this.numWorkers === 0)
      throw new PipelineError(
        'BAD_OPTION',
        'DataLoader: a dataset of a module is made in workers; say numWorkers: 1 or more',
      );
    if (!isModule && this.numWorkers > 0 && dataset.source === undefined)
      throw new PipelineError(
        'BAD_OPTION',
        `DataLoader: workers cannot make this ${dataset.constructor.name} again, it has no 'source'; give { module: new URL('./dataset.js', import.meta.url), data } where the module exports dataset(data), or numWorkers: 0`,
      );
  }

  /** The epoch that the next batch belongs to. */
  get epoch(): number {
    return this.cursor.epoch;
  }

  /** Number of batches of a whole epoch. */
  get length(): number {
    const { plan } = this.prepare();
    if (plan === null) throw new PipelineError('BAD_DATASET', 'DataLoader: an iterable dataset has no length');
    return plan.batches;
  }

  /** Goes to the beginning of an epoch. */
  setEpoch(epoch: number): void {
    this.goTo({ epoch: checkCount('DataLoader.setEpoch', 'epoch', epoch, 0), position: 0 }, undefined);
  }

  /** The next batch; after the last one of an epoch, the first one of the next. @example const [x, y] = loader.nextBatch() */
  nextBatch(): Batch {
    for (let tries = 0; tries < 2; tries++) {
      const batch = this.advance();
      if (batch !== undefined) return batch as Batch;
    }
    throw this.empty();
  }

  /** The batches that are left of this epoch. */
  *[Symbol.iterator](): Iterator<Batch> {
    const { epoch } = this.settled();
    while (this.settled().epoch === epoch) {
      const batch = this.advance();
      if (batch === undefined) return;
      yield batch as Batch;
    }
  }

  /** The same for datasets that return promises, and for not blocking the event loop. */
  async *[Symbol.asyncIterator](): AsyncIterator<Batch> {
    const { epoch } = this.settled();
    while (this.settled().epoch === epoch) {
      const batch = await this.advanceAsync();
      if (batch === undefined) return;
      yield batch as Batch;
    }
  }

  /** The position of the loader: after the last batch that it has returned. */
  stateDict(): DataLoaderState {
    const { order } = this.prepare();
    const { epoch, position } = this.settled();
    const dataset = this.streamState === undefined ? {} : { dataset: this.streamState };
    return { version: 1, epoch, position, order: order === null ? null : order.describe(), ...dataset };
  }

  /** Continues at the position of another loader; batch size, replicas and workers may differ. */
  loadStateDict(state: DataLoaderState): void {
    this.checkStateDict(state);
    this.goTo({ epoch: state.epoch, position: state.position }, state.dataset);
  }

  /**
   * Refuses what `loadStateDict` would refuse, without changing the loader: the state of another order, or no state at all.
   *
   * @example loader.checkStateDict(saved); model.loadStateDict(weights); loader.loadStateDict(saved)
   */
  checkStateDict(state: DataLoaderState): void {
    const { order } = this.prepare();
    const rule = 'give what stateDict() of a loader gave';
    if (typeof state !== 'object' || state === null || state.version !== 1)
      throw new PipelineError('BAD_STATE', `DataLoader.loadStateDict: the state is ${show(state)}; ${rule}`);
    const mine = order === null ? null : order.describe();
    const isMine = state.order === mine || (order !== null && state.order === order.describedBefore());
    if (!isMine)
      throw new PipelineError(
        'BAD_STATE',
        `DataLoader.loadStateDict: the state is of the order ${show(state.order)}, this loader has ${show(mine)}; make the loader with the same dataset, sampler and seed`,
      );
    checkCount('DataLoader.loadStateDict', 'epoch', state.epoch, 0);
    const position = checkCount('DataLoader.loadStateDict', 'position', state.position, 0);
    if (order !== null && position > order.length)
      throw new PipelineError(
        'BAD_STATE',
        `DataLoader.loadStateDict: position ${position} of an epoch of ${order.length} samples`,
      );
  }

  /** Ends the workers and frees what they have read ahead. The loader can be used again. */
  dispose(): void {
    this.forgetAsked();
    this.pool?.dispose();
    this.pool = null;
    this.stream?.dispose();
    this.stream = null;
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** The loader in one line. */
  toString(): string {
    const { batchSize, numReplicas, rank } = this.division;
    const replica = numReplicas === 1 ? '' : `, replica ${rank} of ${numReplicas}`;
    return `DataLoader(batches of ${batchSize}${replica}, ${this.numWorkers} workers; epoch ${this.cursor.epoch}, position ${this.cursor.position})`;
  }

  // --- what there is ---------------------------------------------------------------------------------------------------

  private prepare(): NonNullable<typeof this.prepared> {
    if (this.prepared !== null) return this.prepared;
    const { dataset, options } = this;
    const isModule = 'module' in dataset;
    const length = isModule ? this.workers().ready() : isIterableDataset(dataset) ? null : dataset.length;
    if (length === null) {
      if (options.sampler !== undefined || options.shuffle === true)
        throw new PipelineError(
          'BAD_OPTION',
          'DataLoader: an iterable dataset has its own order; leave out sampler and shuffle',
        );
      if (this.numWorkers > 1)
        throw new PipelineError(
          'BAD_OPTION',
          `DataLoader: numWorkers is ${this.numWorkers}, but an iterable dataset is read by one; say numWorkers: 1, or make it a Dataset with getItem`,
        );
      this.prepared = { order: null, plan: null };
    } else {
      const order = orderOf(length, options);
      this.prepared = { order, plan: new BatchPlan(order.length, this.division) };
    }
    return this.prepared;
  }

  private workers(): WorkerPool {
    if (this.pool !== null) return this.pool;
    const { dataset, options, numWorkers } = this;
    const source = ('module' in dataset ? dataset : dataset.source)!;
    this.pool = new WorkerPool(source, numWorkers, {
      pinMemory: options.pinMemory === true && options.collateFn === undefined,
      collates: options.collateFn === undefined,
    });
    return this.pool;
  }

  private settled(): Cursor {
    const { plan } = this.prepare();
    if (plan !== null) this.cursor = plan.settle(this.cursor);
    return this.cursor;
  }

  private goTo(cursor: Cursor, state: unknown): void {
    this.forgetAsked();
    this.cursor = cursor;
    this.streamState = state;
    this.stream?.dispose();
    this.stream = null;
  }

  private forgetAsked(): void {
    if (this.asked.length > 0) this.pool?.forget(this.asked.map(({ id }) => id));
    this.asked.length = 0;
    this.askedTo = null;
  }

  private empty(): PipelineError {
    const { batchSize, numReplicas } = this.division;
    const replicas = numReplicas === 1 ? '' : ` on ${numReplicas} replicas`;
    return new PipelineError(
      'NO_BATCH',
      `DataLoader: an epoch has no batch of ${batchSize}${replicas}; give a smaller batchSize, or leave out dropLast`,
    );
  }

  // --- one batch -------------------------------------------------------------------------------------------------------

  /** The next batch, and the position after it; undefined if the epoch has none left. */
  private advance(): unknown {
    if (this.numWorkers > 0) return this.reading((pool, id) => this.arrived(pool.take(id)));
    const batch = this.readHere();
    if (!isPromise(batch?.value)) return batch === null ? undefined : this.given(batch);
    batch.value.catch(() => undefined);
    throw new PipelineError(
      'ASYNC_DATASET',
      'DataLoader: the dataset gives promises; say numWorkers: 1 or more, or iterate with for await',
    );
  }

  private async advanceAsync(): Promise<unknown> {
    if (this.numWorkers > 0) {
      const answered = this.reading((pool, id) => pool.takeAsync(id));
      if (answered === undefined) return undefined;
      try {
        return this.arrived(await (answered as Promise<Answered>));
      } catch (error) {
        this.failed(error);
        throw error;
      }
    }
    const batch = this.readHere();
    return batch === null ? undefined : this.given({ ...batch, value: await batch.value });
  }

  /** Reads a batch in this thread. */
  private readHere(): Answered | null {
    const { plan, order } = this.prepare();
    const { collateFn, pinMemory } = this.options;
    const options = { collateFn, pinMemory: pinMemory === true };
    if (plan === null || order === null) {
      this.stream ??= new StreamReader(this.dataset as IterableDataset, this.division, options, {
        ...this.cursor,
        state: this.streamState,
      });
      return this.stream.next();
    }
    const batch = plan.at(this.settled());
    if (batch === null) return null;
    const indices = batch.places.map(({ epoch, position }) => order.indexAt(epoch, position));
    return { value: readBatch(this.dataset as Dataset, indices, options), after: batch.after, state: undefined };
  }

  /** Requests the next batches from workers and takes the first of them. */
  private reading(take: (pool: WorkerPool, id: number) => unknown): unknown {
    try {
      const pool = this.workers();
      const { plan, order } = this.prepare();
      while (this.asked.length < this.prefetch * pool.count) if (!this.ask(pool, plan, order)) break;
      const [first] = this.asked;
      return first === undefined ? undefined : take(pool, first.id);
    } catch (error) {
      this.failed(error);
      throw error;
    }
  }

  private ask(pool: WorkerPool, plan: BatchPlan | null, order: Sampler | null): boolean {
    if (plan === null || order === null) {
      if (this.askedTo === null) {
        this.askedTo = this.cursor;
        pool.tell({ kind: 'begin', division: this.division, from: { ...this.cursor, state: this.streamState } });
      }
      this.asked.push({ id: pool.ask(0, { kind: 'next' }, 'a batch of the stream'), after: null });
      return true;
    }
    const batch = plan.at(this.askedTo ?? this.settled());
    if (batch === null) return false;
    const indices = batch.places.map(({ epoch, position }) => order.indexAt(epoch, position));
    const shown = indices.length > 8 ? `${indices.slice(0, 8).join(', ')}, …` : indices.join(', ');
    this.asked.push({ id: pool.ask(this.turns++, { kind: 'batch', indices }, `samples ${shown}`), after: batch.after });
    this.askedTo = batch.after;
    return true;
  }

  /** A batch has arrived from a worker. */
  private arrived(answered: Answered): unknown {
    const { after } = this.asked.shift()!;
    const { collateFn } = this.options;
    const isEmpty = answered.value === undefined;
    const value = collateFn === undefined || isEmpty ? answered.value : collateFn(answered.value as readonly unknown[]);
    return this.given({ value, after: after ?? answered.after, state: answered.state });
  }

  private given({ value, after, state }: Answered): unknown {
    this.cursor = after!;
    this.streamState = state;
    return value;
  }

  /** After an error: drops what was read ahead, so that the next attempt begins at the same batch. */
  private failed(error: unknown): void {
    const isLost = error instanceof PipelineError && error.code === 'WORKER_LOST';
    const cannotBegin = this.prepared === null;
    if (isLost || cannotBegin) this.asked.length = 0;
    this.forgetAsked();
    if (!isLost && !cannotBegin) return;
    this.pool?.dispose();
    this.pool = null;
  }
}

function noDataset(given: unknown): PipelineError {
  return new PipelineError(
    'BAD_DATASET',
    `DataLoader: the dataset is ${show(given)}; give a Dataset, an IterableDataset, or { module, data }`,
  );
}

function divisionOf(options: DataLoaderOptions): Division {
  const { sampler } = options;
  const isShare = sampler instanceof DistributedSampler;
  if (isShare && (options.numReplicas !== undefined || options.rank !== undefined))
    throw new PipelineError(
      'BAD_OPTION',
      'DataLoader: the sampler says which replica this is; leave out numReplicas and rank',
    );
  const numReplicas = isShare ? sampler.numReplicas : checkCount('DataLoader', 'numReplicas', options.numReplicas ?? 1);
  const rank = isShare ? sampler.rank : checkCount('DataLoader', 'rank', options.rank ?? 0, 0);
  if (rank >= numReplicas)
    throw new PipelineError(
      'BAD_OPTION',
      `DataLoader: rank ${rank} of ${numReplicas} replicas; they are numbered 0 to ${numReplicas - 1}`,
    );
  if (options.dropLast === true && options.fillLast === true)
    throw new PipelineError('BAD_OPTION', 'DataLoader: dropLast and fillLast exclude each other; say one of them');
  const last = options.dropLast === true ? 'drop' : options.fillLast === true ? 'fill' : 'short';
  return { batchSize: checkCount('DataLoader', 'batchSize', options.batchSize ?? 1), numReplicas, rank, last };
}

function checkOrder({ sampler, shuffle, seed }: DataLoaderOptions): void {
  if (sampler !== undefined && !(sampler instanceof Sampler))
    throw new PipelineError(
      'BAD_OPTION',
      `DataLoader: sampler is ${show(sampler)}; give a Sampler, such as new RandomSampler(dataset)`,
    );
  if (sampler !== undefined && (shuffle !== undefined || seed !== undefined))
    throw new PipelineError(
      'BAD_OPTION',
      'DataLoader: sampler and shuffle exclude each other; the sampler has its own seed',
    );
}

function orderOf(length: number, { sampler, shuffle, seed }: DataLoaderOptions): Sampler {
  if (sampler instanceof DistributedSampler) return sampler.whole;
  if (sampler !== undefined) return sampler;
  return shuffle === true ? new RandomSampler({ length }, { seed }) : new SequentialSampler({ length });
}
