/** @file A worker thread of a loader: it makes the dataset, reads the batches that are requested, and lends their tensors. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { Lender } from '@pipewright/torch';
import { tensorsIn } from '@pipewright/torch/internal';
import { type PassedErrorCode, PipelineError } from '../base/errors.ts';
import { allowTypeScript } from '../launch/ranks/typescript.ts';
import type { Cursor, Division } from './batch-plan.ts';
import type { Dataset, IterableDataset } from './dataset.ts';
import { type CollateFn, isIterableDataset, lentTensor, readBatch, replaceTensors, StreamReader } from './reader.ts';

/** The data that a worker is started with. */
export interface WorkerStart {
  readonly module: string;
  readonly data: unknown;
  readonly port: MessagePort;
  /** Counts messages to the loader, which waits for it to change. */
  readonly signal: Int32Array;
  readonly lender: number;
  /** Set once the loader can notice the end of this thread. */
  readonly started: Int32Array;
  readonly pinMemory: boolean;
  /** Whether samples are collated here, or by a function of the loader's thread. */
  readonly collates: boolean;
}

/** The messages to a worker. */
export type WorkerRequest =
  | { readonly kind: 'batch'; readonly id: number; readonly indices: readonly number[] }
  | { readonly kind: 'begin'; readonly division: Division; readonly from: Cursor & { readonly state?: unknown } }
  | { readonly kind: 'next'; readonly id: number }
  | { readonly kind: 'close' };

/** The messages of a worker. */
export type WorkerAnswer =
  | { readonly kind: 'ready'; readonly length: number | null }
  | { readonly kind: 'failed'; readonly error: SentError }
  | {
      readonly kind: 'batch';
      readonly id: number;
      readonly value: unknown;
      readonly after?: Cursor;
      readonly state?: unknown;
    }
  | { readonly kind: 'error'; readonly id: number; readonly error: SentError };

/** An error on its way to another thread. */
export interface SentError {
  readonly message: string;
  readonly code: PassedErrorCode;
  readonly details: Readonly<Record<string, unknown>>;
  readonly stack: string | undefined;
}

interface DatasetExports {
  readonly dataset?: unknown;
  readonly collateFn?: CollateFn;
}

const { module, data, port, signal, lender: number, started, pinMemory, collates } = workerData as WorkerStart;
const lender = Lender.of(number);
lender.attach();
Atomics.store(started, 0, 1);

function answer(message: WorkerAnswer): void {
  port.postMessage(message);
  Atomics.add(signal, 0, 1);
  Atomics.notify(signal, 0);
}

function sent(error: unknown): SentError {
  const made = error instanceof Error ? error : new Error(String(error));
  const known = made instanceof PipelineError;
  return {
    message: made.message,
    code: known ? made.code : 'SAMPLE_FAILED',
    details: known ? made.details : {},
    stack: made.stack,
  };
}

async function start(): Promise<(request: WorkerRequest) => Promise<void>> {
  allowTypeScript(module);
  const exported = (await import(module)) as DatasetExports;
  if (typeof exported.dataset !== 'function')
    throw new PipelineError(
      'BAD_DATASET',
      `DataLoader: ${module} exports no function 'dataset'; export function dataset(data) that returns the dataset`,
    );
  const dataset = (await (exported.dataset as (data: unknown) => unknown)(data)) as Dataset | IterableDataset;
  const options = { collateFn: collates ? exported.collateFn : null, pinMemory };
  let stream: StreamReader | null = null;
  const give = (id: number, value: unknown, rest: object = {}): void => {
    const message = replaceTensors(value, (tensor) => lentTensor(lender.lend(tensor)));
    for (const tensor of tensorsIn(value)) tensor.dispose();
    answer({ kind: 'batch', id, value: message, ...rest });
  };
  answer({ kind: 'ready', length: isIterableDataset(dataset) ? null : dataset.length });
  return async (request) => {
    switch (request.kind) {
      case 'batch':
        return give(request.id, await readBatch(dataset as Dataset, request.indices, options));
      case 'begin':
        stream?.dispose();
        stream = new StreamReader(dataset as IterableDataset, request.division, options, request.from);
        return undefined;
      case 'next': {
        const { value, after, state } = stream!.next();
        return give(request.id, value, { after, state });
      }
      case 'close':
        return process.exit(0);
    }
  };
}

let begun: Error | null = null;
const ready = start();
let last: Promise<unknown> = ready.catch((error: unknown) => answer({ kind: 'failed', error: sent(error) }));
port.on('message', (request: WorkerRequest) => {
  if (request.kind === 'close') process.exit(0);
  last = last.then(async () => {
    try {
      if (request.kind === 'begin') begun = null;
      if (begun !== null) throw begun;
      await (await ready)(request);
    } catch (error) {
      if ('id' in request) answer({ kind: 'error', id: request.id, error: sent(error) });
      else begun = error as Error; // told when a batch is asked for
    }
  });
});
