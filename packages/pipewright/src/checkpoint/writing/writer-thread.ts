/** @file The thread that writes checkpoints: takes one job after the other, and answers each. */
import { type MessagePort, workerData } from 'node:worker_threads';
import { describeFileError } from '@pipewright/torch/files';
import { writeCheckpoint } from './commit.ts';
import { type FileSystem, realFileSystem } from './file-system.ts';
import { failedSave, type WriteJob, type WriteResult } from './write-job.ts';

/** What the thread is started with. */
export interface WriterStart {
  /**
   * How many jobs are done, and 1 as soon as the thread has started; whoever waits is woken. Then how many jobs need not wait for
   * other ranks any more.
   */
  readonly done: Int32Array;
  /** A module with a file system of its own; for tests. */
  readonly fileSystem: string | null;
  readonly port: MessagePort;
}

const { done: finished, fileSystem, port } = workerData as WriterStart;

function run(job: WriteJob): WriteResult {
  const start = performance.now();
  try {
    const number = Atomics.load(finished, 0) + 1;
    return writeCheckpoint({ ...job, isGivenUp: () => Atomics.load(finished, 2) >= number }, fs);
  } catch (error) {
    const path = `${job.folder}/${job.name}`;
    return failedSave(
      'CANNOT_SAVE',
      `saveCheckpoint: ${path} was not written: ${describeFileError(error)}; the run goes on and earlier checkpoints are as they were; make room, or save to another folder`,
      performance.now() - start,
    );
  }
}

const fs: FileSystem =
  fileSystem === null ? realFileSystem : ((await import(fileSystem)) as { readonly fileSystem: FileSystem }).fileSystem;

Atomics.store(finished, 1, 1);
Atomics.notify(finished, 1);

port.on('message', (job: WriteJob) => {
  port.postMessage(run(job));
  Atomics.add(finished, 0, 1);
  Atomics.notify(finished, 0);
});
