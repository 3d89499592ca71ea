/**
 * @file The worker threads of a loader. The loader's own thread may be blocked in a training loop, so it waits for messages
 * without its event loop: a counter in shared memory changes with every message.
 */
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { Lender, type Tensor } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';
import { compiledUrl } from '../base/module-url.ts';
import { passedCode } from '../base/passed-code.ts';
import type { Cursor } from './batch-plan.ts';
import type { DatasetModule } from './dataset.ts';
import { takeTensors } from './reader.ts';
import type { SentError, WorkerAnswer, WorkerRequest, WorkerStart } from './worker.ts';

/** How often a wait checks whether the worker has ended, in milliseconds. */
const LOOK_MS = 50;
/** How long a worker may take to end by itself, in milliseconds. */
const END_MS = 2000;

/** How long a worker may take to start, in milliseconds: the end of one that has not started cannot be seen while waiting. */
const START_MS = 120_000;

interface PoolWorker {
  readonly worker: Worker;
  readonly port: MessagePort;
  readonly lender: Lender;
  /** Requests that it has not answered, in order. */
  readonly asked: Map<number, string>;
  /** 1 once its end can be seen. */
  readonly started: Int32Array;
  /** Whether the event loop has reported its end. */
  exited: boolean;
}

/** The answer of a worker. */
export interface Answered {
  readonly value: unknown;
  readonly after: Cursor | undefined;
  readonly state: unknown;
}

type BatchAnswer = Extract<WorkerAnswer, { kind: 'batch' | 'error' }> & { readonly lender: Lender };

/** The options of a pool. */
export interface PoolOptions {
  readonly pinMemory: boolean;
  readonly collates: boolean;
  /** How long a worker may take to start, in milliseconds. */
  readonly startMs?: number;
}

/** Threads that read. */
export class WorkerPool {
  /** Samples of the dataset; null where it is iterable. Known when a worker is ready. */
  private readonly workers: PoolWorker[];
  private readonly signal = new Int32Array(new SharedArrayBuffer(4));
  private readonly answers = new Map<number, BatchAnswer>();
  private readonly unwanted = new Set<number>();
  private known: { readonly length: number | null } | null = null;
  private failed: SentError | null = null;
  private ids = 0;
  private readonly begun = performance.now();
  private readonly startMs: number;

  constructor(source: DatasetModule, count: number, options: PoolOptions) {
    const { startMs, ...rest } = options;
    this.startMs = startMs ?? START_MS;
    this.workers = Array.from({ length: count }, (_, i) => {
      const { port1, port2 } = new MessageChannel();
      const lender = Lender.open();
      const started = new Int32Array(new SharedArrayBuffer(4));
      const { module, data } = source;
      const start: WorkerStart = {
        module: String(module),
        data,
        port: port2,
        signal: this.signal,
        lender: lender.number,
        started,
        ...rest,
      };
      const worker = new Worker(compiledUrl('worker-start', import.meta.url), {
        workerData: start,
        transferList: [port2],
        name: `data worker ${i}`,
        ...(import.meta.url.endsWith('.ts') ? { execArgv: [] } : {}), // what is compiled runs as who has installed it runs it
      });
      worker.on('error', () => undefined); // seen by its end
      worker.unref();
      port1.unref();
      const one: PoolWorker = { worker, port: port1, lender, asked: new Map(), started, exited: false };
      worker.on('exit', () => (one.exited = true));
      return one;
    });
  }

  /** Number of workers. */
  get count(): number {
    return this.workers.length;
  }

  /** The threads, for tests. */
  get threads(): readonly Worker[] {
    return this.workers.map(({ worker }) => worker);
  }

  /** Waits until the first worker has its dataset, and says how long that is; null where it is iterable. */
  ready(): number | null {
    return this.wait(() => this.known).length;
  }

  /** Sends a request to a worker and returns its number, for `take`. `what` names the samples in errors. */
  ask(at: number, request: { kind: 'batch'; indices: readonly number[] } | { kind: 'next' }, what: string): number {
    const id = ++this.ids;
    const worker = this.workers[at % this.workers.length]!;
    worker.asked.set(id, what);
    worker.port.postMessage({ ...request, id } satisfies WorkerRequest);
    return id;
  }

  /** Sends all workers a message without an answer. */
  tell(request: Extract<WorkerRequest, { kind: 'begin' }>): void {
    for (const { port } of this.workers) port.postMessage(request);
  }

  /** Waits for an answer. */
  take(id: number): Answered {
    return this.open(
      this.wait(() => this.found(id), id),
      id,
    );
  }

  /** The same without blocking the event loop. */
  async takeAsync(id: number): Promise<Answered> {
    for (;;) {
      const seen = Atomics.load(this.signal, 0);
      this.drain();
      const found = this.found(id);
      if (found !== null) return this.open(found, id);
      this.lookForEnd(id);
      if (Atomics.load(this.signal, 0) !== seen) continue;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** Drops these answers. */
  forget(ids: Iterable<number>): void {
    for (const id of ids) this.unwanted.add(id);
    this.drain();
  }

  /** Ends all workers and frees what they have lent. */
  dispose(): void {
    const until = Date.now() + END_MS;
    for (const { port, worker } of this.workers) {
      port.postMessage({ kind: 'close' } satisfies WorkerRequest);
      worker.ref(); // its end is worth waiting for
    }
    for (const { lender, worker, port } of this.workers) {
      while (!lender.hasEnded && Date.now() < until) Atomics.wait(this.signal, 0, Atomics.load(this.signal, 0), 1);
      void worker.terminate();
      port.close();
      lender.close();
    }
  }

  // --- waiting -------------------------------------------------------------------------------------------------------

  private wait<T>(find: () => T | null, id?: number): T {
    for (;;) {
      const seen = Atomics.load(this.signal, 0);
      this.drain();
      const found = find();
      if (found !== null) return found;
      this.lookForEnd(id);
      Atomics.wait(this.signal, 0, seen, LOOK_MS);
    }
  }

  private found(id: number): BatchAnswer | null {
    return this.answers.get(id) ?? null;
  }

  private open(answer: BatchAnswer, id: number): Answered {
    this.answers.delete(id);
    if (answer.kind === 'error') throw revive(answer.error);
    const { value, after, state, lender } = answer;
    return { value: takeTensors(value, (number): Tensor => lender.take(number)), after, state };
  }

  /** Takes all messages that have come. */
  private drain(): void {
    for (const { port, lender, asked } of this.workers) {
      for (;;) {
        const received = receiveMessageOnPort(port) as { readonly message: WorkerAnswer } | undefined;
        if (received === undefined) break;
        const { message } = received;
        if (message.kind === 'ready') this.known ??= { length: message.length };
        else if (message.kind === 'failed') this.failed ??= message.error;
        else {
          asked.delete(message.id);
          if (!this.unwanted.delete(message.id)) this.answers.set(message.id, { ...message, lender });
          else if (message.kind === 'batch') takeTensors(message.value, (number): Tensor => freed(lender.take(number)));
        }
      }
    }
    if (this.failed !== null) throw revive(this.failed);
  }

  /** Throws if the worker that has to answer has ended, or any worker while none has its dataset. */
  private lookForEnd(id?: number): void {
    for (const [i, { lender, asked, started, exited }] of this.workers.entries()) {
      if (id !== undefined && !asked.has(id)) continue;
      if (!exited && Atomics.load(started, 0) === 0) {
        if (performance.now() - this.begun < this.startMs) continue;
        throw new PipelineError(
          'WORKER_LOST',
          `DataLoader: worker ${i} of ${this.workers.length} has not started within ${this.startMs / 1000} s: it was terminated, or the machine has no memory or no time for it; use fewer workers (numWorkers)`,
          { worker: i },
        );
      }
      if (!exited && !lender.hasEnded) continue;
      const reading = id === undefined ? 'the dataset' : [...asked.values()][0]!;
      throw new PipelineError(
        'WORKER_LOST',
        `DataLoader: worker ${i} of ${this.workers.length} has ended while it read ${reading}: it was terminated, ran out of memory, or called process.exit; the loader can be used again and starts new workers`,
        { worker: i, reading },
      );
    }
  }
}

function freed(tensor: Tensor): Tensor {
  tensor.dispose();
  return tensor;
}

function revive({ message, code, details, stack }: SentError): PipelineError {
  const error = new PipelineError(passedCode(code), message, details);
  if (stack !== undefined) error.stack = stack;
  return error;
}
