/** @file An operation under way: wait for it, await it, or ask whether it is over. */
import { checkFunction, checkGiven, checkObject } from '../../base/checks.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { explain, type OperationDetails } from './errors.ts';
import { dist } from './native.ts';
import { checkTimeout } from './store.ts';

/** Limits of a wait. */
export interface WaitOptions {
  /** Give up after this many milliseconds; the operation itself goes on, and can be waited for again. */
  readonly timeoutMs?: number | undefined;
}

/** Limits of an asynchronous wait. */
export interface AsyncWaitOptions extends WaitOptions {
  readonly signal?: AbortSignal | undefined;
}

/** How an operation is described, and what it gives. */
export interface WorkDetails<T> extends OperationDetails {
  readonly timeoutMs: number;
  /** Makes the result, once. */
  readonly result: () => T;
}

const abandoned = new FinalizationRegistry<number>((handle) => dist.workRelease(handle));

/**
 * An operation under way. Its tensors are held until it is over, whether or not anybody waits.
 *
 * @example const work = group.irecv(buffer, 0); compute(); work.wait()
 */
export class Work<T = void> {
  readonly details: WorkDetails<T>;
  /** The addon's handle; zero once the operation is over and its result was fetched. */
  private handle: number;
  private value: { readonly result: T } | undefined;
  private failure: unknown;

  constructor(handle: number, details: WorkDetails<T>) {
    checkGiven('Work', Number.isSafeInteger(handle) && handle >= 0, ['the handle', handle], 'one of the addon');
    checkObject('Work', 'the details', details);
    checkFunction('Work', details.result, 'details.result');
    this.handle = handle;
    this.details = details;
    if (handle !== 0) abandoned.register(this, handle, this);
    else this.value = { result: details.result() };
  }

  /** Blocks until the operation is over and returns its result. */
  wait(options?: WaitOptions): T {
    checkOptions('Work.wait', options, ['timeoutMs']);
    if (this.handle === 0) return this.settled();
    try {
      dist.workWait(this.handle, checkTimeout('Work.wait', options?.timeoutMs, this.details.timeoutMs));
    } catch (error) {
      this.fail(error);
    }
    return this.finish();
  }

  /** Resolves when the operation is over; the event loop runs meanwhile. */
  async done(options?: AsyncWaitOptions): Promise<T> {
    checkOptions('Work.done', options, ['timeoutMs', 'signal']);
    if (this.handle === 0) return this.settled();
    const timeoutMs = checkTimeout('Work.done', options?.timeoutMs, this.details.timeoutMs);
    try {
      await cancellable(options?.signal, (key) => dist.workDone(this.handle, timeoutMs, key));
    } catch (error) {
      options?.signal?.throwIfAborted();
      this.fail(error);
    }
    return this.handle === 0 ? this.settled() : this.finish();
  }

  /** Whether `wait()` would return at once. */
  isCompleted(): boolean {
    return this.handle === 0 || dist.workIsOver(this.handle);
  }

  private finish(): T {
    this.release();
    this.value = { result: this.details.result() };
    return this.value.result;
  }

  private settled(): T {
    if (this.value !== undefined) return this.value.result;
    throw this.failure;
  }

  private fail(error: unknown): never {
    const explained = explain(error, this.details);
    const code = error instanceof TorchError ? error.code : '';
    // These end the wait, not the operation.
    if (!['TIMED_OUT', 'CANCELLED', 'ABORTED', 'TERMINATED'].includes(code)) {
      this.release();
      this.failure = explained;
    }
    throw explained;
  }

  private release(): void {
    abandoned.unregister(this);
    dist.workRelease(this.handle);
    this.handle = 0;
  }
}

let lastKey = 0;

/** Runs an asynchronous call of the addon that `signal` can end. */
export async function cancellable<T>(signal: AbortSignal | undefined, call: (key: number) => Promise<T>): Promise<T> {
  if (signal === undefined) return call(0);
  signal.throwIfAborted();
  const key = ++lastKey;
  const cancel = (): void => dist.cancelAsync(key);
  signal.addEventListener('abort', cancel, { once: true });
  try {
    return await call(key);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}
