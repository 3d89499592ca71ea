/**
 * @file Which samples are in a batch, as a function of the loader's position. The batch of all replicas together is a range of
 * positions of an epoch, and each replica has a block of it, so that the batches are the same for any number of replicas.
 */
import { PipelineError } from '../base/errors.ts';

/** The position of a loader: how many samples of an epoch were returned, on all replicas together. */
export interface Cursor {
  readonly epoch: number;
  readonly position: number;
}

/** What happens to the samples at the end of an epoch that do not fill a batch. */
export type LastBatch = 'short' | 'drop' | 'fill';

/** How an epoch is divided. */
export interface Division {
  /** Samples of a batch of one replica. */
  readonly batchSize: number;
  readonly numReplicas: number;
  readonly rank: number;
  readonly last: LastBatch;
}

/** A batch of one replica. */
export interface PlannedBatch {
  /** The epoch and position of each sample. */
  readonly places: readonly Cursor[];
  /** The position of the loader after it. */
  readonly after: Cursor;
}

/** This replica's block of a batch: from one position to before another. */
export function shareOf(count: number, { numReplicas, rank }: Division): readonly [from: number, to: number] {
  if (count < numReplicas)
    throw new PipelineError(
      'SHORT_BATCH',
      `DataLoader: the last batch of the epoch has ${count} ${count === 1 ? 'sample' : 'samples'} for ${numReplicas} replicas; say dropLast: true, or fillLast: true to fill it with samples of the next epoch`,
      { samples: count, replicas: numReplicas },
    );
  return [Math.floor((rank * count) / numReplicas), Math.floor(((rank + 1) * count) / numReplicas)];
}

/** The batches of epochs of a known length. */
export class BatchPlan {
  readonly length: number;
  readonly division: Division;

  constructor(length: number, division: Division) {
    this.length = length;
    this.division = division;
  }

  /** Samples of a batch of all replicas. */
  get wholeBatch(): number {
    return this.division.batchSize * this.division.numReplicas;
  }

  /** Number of batches of a whole epoch. */
  get batches(): number {
    return (this.division.last === 'drop' ? Math.floor : Math.ceil)(this.length / this.wholeBatch);
  }

  /** The same position, as the beginning of the next epoch if nothing of this one is left. */
  settle({ epoch, position }: Cursor): Cursor {
    const { length, wholeBatch } = this;
    const left = length - position;
    if (left <= 0)
      return length === 0 ? { epoch, position: 0 } : this.settle({ epoch: epoch + 1, position: position - length });
    return this.division.last === 'drop' && left < wholeBatch && position > 0
      ? { epoch: epoch + 1, position: 0 }
      : { epoch, position };
  }

  /** The batch at a position; null if there is none at all. */
  at(from: Cursor): PlannedBatch | null {
    const { length, wholeBatch, division } = this;
    if (length === 0 || (division.last === 'drop' && length < wholeBatch)) return null;
    const start = this.settle(from);
    const count = division.last === 'short' ? Math.min(wholeBatch, length - start.position) : wholeBatch;
    const [begin, end] = shareOf(count, division);
    const places = Array.from({ length: end - begin }, (_, i) => {
      const at = start.position + begin + i;
      return { epoch: start.epoch + Math.floor(at / length), position: at % length };
    });
    return { places, after: this.settle({ epoch: start.epoch, position: start.position + count }) };
  }
}
