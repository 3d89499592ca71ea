/** @file Streams and events: what runs in order on a GPU, and marks in it. */
import { checkFunction, checkGiven } from '../base/checks.ts';
import { deviceIndex, type NativeObject, nativeCuda } from './native.ts';

/**
 * A queue of a GPU: work in it runs in order, work in another one beside it.
 *
 * @example const side = new cuda.Stream(); cuda.withStream(side, () => a.matmul(b))
 */
export class Stream {
  /** The addon's object. */
  readonly object: NativeObject;

  constructor(options?: { device?: number | string; highPriority?: boolean }, object?: NativeObject) {
    this.object = object ?? nativeCuda().createStream(deviceIndex(options?.device), options?.highPriority === true);
  }

  /** Number of the device. */
  get device(): number {
    return nativeCuda().streamDevice(this.object);
  }

  /** Waits until the work that is in the stream is done. */
  synchronize(): void {
    nativeCuda().streamSynchronize(this.object);
  }

  /** Whether all work in the stream is done. */
  query(): boolean {
    return nativeCuda().streamQuery(this.object);
  }

  /** Work that comes later waits for the event. */
  waitEvent(event: Event): void {
    nativeCuda().eventBlock(event.object, this.object);
  }

  /** Work that comes later waits for what is in the other stream now. */
  waitStream(other: Stream): void {
    this.waitEvent(other.recordEvent());
  }

  /** Marks this place in the stream. */
  recordEvent(event: Event = new Event()): Event {
    event.record(this);
    return event;
  }

  /** Whether both are the same stream. */
  equals(other: Stream): boolean {
    return this.device === other.device && nativeCuda().streamId(this.object) === nativeCuda().streamId(other.object);
  }
}

/**
 * A mark in a stream that can be waited for and timed.
 *
 * @example const start = new cuda.Event({ enableTiming: true }); start.record()
 */
export class Event {
  /** The addon's object. */
  readonly object: NativeObject;

  constructor(options?: { enableTiming?: boolean }) {
    this.object = nativeCuda().createEvent(options?.enableTiming === true);
  }

  /** Puts the mark into a stream: the current one when nothing is said. */
  record(stream: Stream = currentStream()): void {
    nativeCuda().eventRecord(this.object, stream.object);
  }

  /** Makes a stream wait for the mark: the current one when nothing is said. */
  wait(stream: Stream = currentStream()): void {
    nativeCuda().eventBlock(this.object, stream.object);
  }

  /** Whether the work before the mark is done. */
  query(): boolean {
    return nativeCuda().eventQuery(this.object);
  }

  /** Waits until the work before the mark is done. */
  synchronize(): void {
    nativeCuda().eventSynchronize(this.object);
  }

  /** Milliseconds from this mark to another; both need `enableTiming`. */
  elapsedTime(end: Event): number {
    return nativeCuda().eventElapsed(this.object, end.object);
  }
}

/** The stream that operators of this thread go to. */
export function currentStream(device?: number | string): Stream {
  return new Stream(undefined, nativeCuda().currentStream(deviceIndex(device)));
}

/** The stream that operators go to when nothing else is said. */
export function defaultStream(device?: number | string): Stream {
  return new Stream(undefined, nativeCuda().defaultStream(deviceIndex(device)));
}

/** Makes operators of this thread go to `stream`. Prefer `withStream`. */
export function setStream(stream: Stream): void {
  nativeCuda().setStream(stream.object);
}

/** Runs `body` with its operators going to `stream`. @example cuda.withStream(side, () => copy.copy_(x, true)) */
export function withStream<T>(stream: Stream, body: () => T): T {
  checkGiven('withStream', stream instanceof Stream, ['the first argument', stream], 'a stream');
  checkFunction('withStream', body, 'the second argument');
  const before = currentStream(stream.device);
  setStream(stream);
  try {
    return body();
  } finally {
    setStream(before);
  }
}
