/** @file Reads batches of a dataset: in the thread of the loader, or in a worker. */
import { keep, scope, type Tensor } from '@pipewright/torch';
import { isPlainObject, mapTensors, tensorsIn } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { type Cursor, type Division, shareOf } from './batch-plan.ts';
import { defaultCollate } from './collate.ts';
import type { Dataset, IterableDataset } from './dataset.ts';

/** Makes a batch of samples. */
export type CollateFn = (samples: readonly unknown[]) => unknown;

/** How batches are made. */
export interface ReadOptions {
  /** Default: `defaultCollate`, or the dataset's own `getBatch`. Null: samples are left as they are. */
  readonly collateFn: CollateFn | null | undefined;
  readonly pinMemory: boolean;
}

/** A batch of a stream, and the position after it. */
export interface StreamBatch {
  /** Undefined where the stream has no samples. */
  readonly value: unknown;
  readonly after: Cursor;
  /** The dataset's own state after the batch; undefined if it has none. */
  readonly state: unknown;
}

/** Whether a dataset has samples one after the other only. */
export function isIterableDataset(dataset: Dataset | IterableDataset): dataset is IterableDataset {
  return !('getItem' in dataset) && Symbol.iterator in dataset;
}

/** Reads the samples of these indices and makes a batch of them; a promise where the dataset gives promises. */
export function readBatch(dataset: Dataset, indices: readonly number[], options: ReadOptions): unknown {
  if (options.collateFn === undefined && dataset.getBatch !== undefined) {
    const [first] = indices;
    return finish(
      () => dataset.getBatch?.(indices),
      options,
      `samples ${indices.length > 4 ? `${indices.slice(0, 4).join(', ')}, …` : indices.join(', ')}`,
      first,
    );
  }
  const read = scope(() => {
    const samples = indices.map((index) => named(`sample ${index}`, index, () => dataset.getItem(index)));
    if (!samples.some(isPromise)) return { batch: collated(samples, options) };
    return { later: samples.map((one, i) => (isPromise(one) ? waitNamed(one, indices[i]!) : keep(one))) };
  });
  return read.later === undefined ? read.batch : Promise.all(read.later).then((all) => collated(all, options));
}

/** Reads a stream batch by batch. Replicas take their blocks of the same batches. */
export class StreamReader {
  private readonly dataset: IterableDataset;
  private readonly division: Division;
  private readonly options: ReadOptions;
  private iterator: Iterator<unknown> | null = null;
  private ahead: IteratorResult<unknown> | null = null;
  private epoch: number;
  private position: number;

  /** Begins at a position: with the dataset's own state, or by skipping what comes before. */
  constructor(
    dataset: IterableDataset,
    division: Division,
    options: ReadOptions,
    from: Cursor & { readonly state?: unknown },
  ) {
    this.dataset = dataset;
    this.division = division;
    this.options = options;
    this.epoch = from.epoch;
    this.position = from.position;
    if (from.position === 0) return;
    if (from.state !== undefined && dataset.loadStateDict !== undefined) {
      dataset.loadStateDict(from.state);
      this.iterator = dataset[Symbol.iterator]();
      return;
    }
    this.position = 0;
    for (let skipped = 0; skipped < from.position; skipped++) {
      if (this.pull().done === true)
        throw new PipelineError(
          'BAD_STATE',
          `DataLoader: the state says that ${from.position} samples of epoch ${from.epoch} were given out, but the dataset has ${skipped}; it is another dataset`,
        );
      this.position++;
    }
  }

  /** The next batch; its value is undefined where an epoch has no batch any more. */
  next(): StreamBatch {
    const { batchSize, numReplicas, last } = this.division;
    const whole = batchSize * numReplicas;
    return scope(() => {
      const samples: unknown[] = [];
      while (samples.length < whole) {
        const one = this.pull();
        if (one.done !== true) {
          samples.push(one.value);
          this.position++;
          continue;
        }
        const isEmpty = this.position === 0;
        this.beginEpoch();
        if (isEmpty || last === 'drop') return { value: undefined, after: this.cursor, state: undefined };
        if (last === 'short') break;
      }
      const [begin, end] = shareOf(samples.length, this.division);
      const value = collated(samples.slice(begin, end), this.options);
      if (this.position === 0) return { value, after: this.cursor, state: undefined };
      // Only the next sample shows whether the epoch goes on; it is kept for the next batch.
      const state = this.dataset.stateDict?.();
      this.ahead = keep(this.pull());
      if (this.ahead.done === true) this.beginEpoch();
      return { value, after: this.cursor, state: this.position === 0 ? undefined : state };
    });
  }

  private beginEpoch(): void {
    this.iterator = null;
    this.ahead = null;
    this.epoch++;
    this.position = 0;
  }

  private get cursor(): Cursor {
    return { epoch: this.epoch, position: this.position };
  }

  private pull(): IteratorResult<unknown> {
    const { ahead } = this;
    this.ahead = null;
    if (ahead !== null) return ahead;
    this.iterator ??= this.dataset[Symbol.iterator]();
    const iterator = this.iterator;
    return named(`sample at position ${this.position} of epoch ${this.epoch}`, this.position, () => iterator.next());
  }

  /** Ends the iterator. */
  dispose(): void {
    this.iterator?.return?.();
    this.iterator = null;
  }
}

function collated(samples: readonly unknown[], { collateFn, pinMemory }: ReadOptions): unknown {
  const batch = collateFn === null ? [...samples] : (collateFn ?? defaultCollate)(samples);
  return pinMemory ? pinned(batch) : batch;
}

function finish(read: () => unknown, options: ReadOptions, what: string, index: number | undefined): unknown {
  const { batch } = scope(() => {
    const given = named(what, index, read);
    return { batch: !isPromise(given) && options.pinMemory ? pinned(given) : given };
  });
  if (!isPromise(batch)) return batch;
  return waitNamed(batch, index ?? 0, what).then((value) => (options.pinMemory ? pinned(value) : value));
}

function pinned(batch: unknown): unknown {
  return tensorsIn(batch).length === 0 ? batch : mapTensors(batch, (one: Tensor) => one.pinMemory());
}

/** Whether a value has to be awaited. */
export function isPromise(value: unknown): value is Promise<unknown> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';
}

function named<T>(what: string, index: number | undefined, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw failure(what, index, cause);
  }
}

async function waitNamed(value: Promise<unknown>, index: number, what = `sample ${index}`): Promise<unknown> {
  try {
    return await value;
  } catch (cause) {
    throw failure(what, index, cause);
  }
}

function failure(what: string, index: number | undefined, cause: unknown): PipelineError {
  if (cause instanceof PipelineError && cause.code === 'SAMPLE_FAILED') return cause;
  const message = cause instanceof Error ? cause.message : String(cause);
  return new PipelineError('SAMPLE_FAILED', `DataLoader: ${what}: ${message}`, { index }, { cause });
}

/** A batch as a message between threads: `change` replaces its tensors. */
export function replaceTensors(value: unknown, change: (tensor: Tensor) => unknown): unknown {
  return mapTensors(value, change as (tensor: Tensor) => Tensor);
}

const lentKey = 'pipewright.lent';

/** A tensor in a message, by its number. */
export function lentTensor(number: number): Record<string, number> {
  return { [lentKey]: number };
}

/** A message with its tensors. */
export function takeTensors(value: unknown, take: (number: number) => Tensor): unknown {
  if (Array.isArray(value)) return value.map((item) => takeTensors(item, take));
  if (!isPlainObject(value)) return value;
  const number: unknown = Reflect.get(value, lentKey);
  if (typeof number === 'number') return take(number);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, takeTensors(item, take)]));
}
