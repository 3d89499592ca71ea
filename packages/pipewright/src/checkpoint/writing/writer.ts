/** @file The writing thread as seen by a rank: it sends jobs and receives results, without having to wait for them. */
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { PipelineError } from '../../base/errors.ts';
import { isInterrupted } from '../../base/interruption.ts';
import { compiledUrl } from '../../base/module-url.ts';
import { SnapshotMemory } from './snapshot-memory.ts';
import { failedSave, type WriteJob, type WriteResult } from './write-job.ts';
import type { WriterStart } from './writer-thread.ts';

/** How long a process that ends waits for a save under way: in good order, and when it has failed. */
const EXIT_MS: readonly [number, number] = [60_000, 500];
/** How often to look whether the ranks are interrupted. */
const LOOK_MS = 100;
/** How long the thread may take to start. */
const START_MS = 120_000;

let fileSystem: string | null = null;

/** Lets writing threads made from now on use another file system: the URL of a module that exports `fileSystem`. For tests. */
export function setFileSystem(module: string | null): void {
  fileSystem = module;
}

/** A rank's writing thread; it writes one checkpoint at a time. */
export class Writer {
  /** Where the copies are. */
  readonly memory: SnapshotMemory = new SnapshotMemory();
  private readonly worker: Worker;
  private readonly port: MessagePort;
  /** How many jobs are done, whether the thread has started, and how many jobs need not wait for other ranks any more. */
  private readonly done = new Int32Array(new SharedArrayBuffer(12));
  private sent = 0;
  private pending: ((result: WriteResult) => void) | null = null;

  constructor() {
    const { port1, port2 } = new MessageChannel();
    const start: WriterStart = { done: this.done, fileSystem, port: port2 };
    this.port = port1;
    this.worker = new Worker(compiledUrl('writer-thread', import.meta.url), {
      workerData: start,
      transferList: [port2],
      name: 'pipewright checkpoint',
      execArgv: [], // it runs compiled code, whatever this thread was started with
    });
    this.worker.on('error', (error) => this.settle(lost(error)));
    port1.on('message', (result: WriteResult) => this.settle(result));
    this.worker.unref();
    port1.unref();
    process.on('exit', (code) => this.wait(code === 0 ? EXIT_MS[0] : EXIT_MS[1]));
  }

  /** Starts a job; the one before it must have ended. */
  submit(job: WriteJob, ended: (result: WriteResult) => void): void {
    this.pending = ended;
    this.sent++;
    this.worker.ref();
    this.port.postMessage(job);
  }

  /** Waits until the job under way has ended; without event loop, because training has none. */
  wait(timeoutMs: number = Number.POSITIVE_INFINITY): void {
    if (this.pending === null) return;
    const before = this.sent - 1;
    if (timeoutMs > START_MS && Atomics.wait(this.done, 1, 0, START_MS) === 'timed-out')
      this.settle(lost(new Error(`it did not start within ${START_MS / 1000} s`)));
    if (this.pending === null) return;
    const until = performance.now() + timeoutMs;
    for (let left = timeoutMs; left > 0 && Atomics.load(this.done, 0) === before; left = until - performance.now()) {
      if (isInterrupted()) this.giveUp();
      Atomics.wait(this.done, 0, before, Math.min(left, LOOK_MS));
    }
    const received = receiveMessageOnPort(this.port) as { message: WriteResult } | undefined;
    if (received !== undefined) this.settle(received.message);
  }

  /** Takes a result that has come meanwhile. */
  poll(): void {
    this.wait(0);
  }

  /** A rank is lost: the job under way does not wait for its files, and fails. */
  giveUp(): void {
    if (this.pending === null) return;
    Atomics.store(this.done, 2, this.sent);
  }

  private settle(result: WriteResult): void {
    const ended = this.pending;
    this.pending = null;
    this.worker.unref();
    this.memory.release();
    ended?.(result);
  }
}

function lost(error: unknown): WriteResult {
  const why = error instanceof Error ? error.message : String(error);
  return failedSave('CANNOT_SAVE', `saveCheckpoint: the writing thread ended: ${why}; save again`);
}

let own: Writer | null = null;

/** The writer of this rank. */
export function ownWriter(): Writer {
  own ??= new Writer();
  return own;
}

/** Saves under way need not wait for other ranks any more, because one is lost: they fail, and the step that repeats saves again. */
export function giveUpSaves(): void {
  own?.giveUp();
}

/** The error of a save that failed. */
export function saveError({ code, message }: NonNullable<WriteResult['error']>): PipelineError {
  return new PipelineError(code, message);
}
