/** @file The worker that explores and reads schedules beside the page, so that the page never waits for it. */
import {
  answerOpening,
  answerRequest,
  type ExploreAnswer,
  type ExploreJob,
  type ExploreRequest,
  type OpenAnswer,
  type OpenRequest,
  requestOf,
} from '../model/explore-request.ts';

/** The part of a worker's global scope that is used. */
interface WorkerScope {
  onmessage: ((event: MessageEvent<ExploreRequest | OpenRequest>) => void) | null;
  postMessage(message: ExploreAnswer | OpenAnswer, transfer: Transferable[]): void;
}

const cannotStart = 'The worker of the page could not be started.';

/** Answers requests; called in the worker, which runs the same script as the page. */
export function serveRequests(): void {
  const scope = globalThis as unknown as WorkerScope;
  scope.onmessage = ({ data }) => {
    const { answer, buffers } = 'text' in data ? answerOpening(data) : answerRequest(data);
    scope.postMessage(answer, buffers);
  };
}

/** A worker that is started when it is first needed, and does one list of jobs at a time. */
export class ExploreWorker {
  private worker: Worker | null = null;
  private isBusy = false;

  /** Does jobs one after the other; those of an earlier call are given up. */
  run(jobs: readonly ExploreJob[], onAnswer: (answer: ExploreAnswer, at: number) => void): void {
    this.stop();
    const worker = (this.worker ??= start());
    let at = 0;
    const next = (): void => {
      this.isBusy = at < jobs.length;
      if (this.isBusy) worker.postMessage(requestOf(jobs[at]!));
    };
    const take = (answer: ExploreAnswer): void => {
      onAnswer(answer, at++);
      next();
    };
    worker.onmessage = ({ data }: MessageEvent<ExploreAnswer>) => take(data);
    worker.onerror = ({ message }) => {
      this.close();
      while (at < jobs.length) onAnswer({ error: message || cannotStart }, at++);
    };
    next();
  }

  /** Gives up what is being done. */
  stop(): void {
    if (this.isBusy) this.close();
  }

  close(): void {
    this.worker?.terminate();
    this.worker = null;
    this.isBusy = false;
  }
}

/** Reads a large schedule and judges it. */
export function openInWorker(request: OpenRequest): Promise<OpenAnswer> {
  const worker = start();
  return new Promise<OpenAnswer>((resolve) => {
    worker.onmessage = ({ data }: MessageEvent<OpenAnswer>) => resolve(data);
    worker.onerror = ({ message }) => resolve({ error: message || cannotStart });
    worker.postMessage(request);
  }).finally(() => worker.terminate());
}

/** Starts a worker with the page's own script: the page is one file, and works without a server. */
function start(): Worker {
  const script = document.querySelector('script:not([type])')?.textContent ?? '';
  const url = URL.createObjectURL(new Blob([script], { type: 'text/javascript' }));
  const worker = new Worker(url);
  URL.revokeObjectURL(url);
  return worker;
}
