/** @file Times on a GPU: marks in its stream instead of the clock of the host, which is ahead of it. */
import { cuda, TorchError } from '@pipewright/torch';

/**
 * Marks of one step. They are read after the step, when the GPU has caught up: the only time the recorder waits for it.
 */
export class GpuClock {
  private readonly device: string;
  private readonly events: (cuda.Event | undefined)[];
  private readonly last: cuda.Event = new cuda.Event({ enableTiming: true });
  /** Marks made in this step. */
  private marked: number[] = [];

  private constructor(device: string, marks: number) {
    this.device = device;
    this.events = new Array<cuda.Event | undefined>(marks);
  }

  /** The clock of a device; null if it is no GPU, or the CUDA addon was not built. */
  static on(device: string, marks: number): GpuClock | null {
    if (!device.startsWith('cuda')) return null;
    try {
      return new GpuClock(device, marks);
    } catch (error) {
      if (error instanceof TorchError && error.code === 'NO_CUDA_ADDON') return null;
      throw error;
    }
  }

  /** A step begins: what one that failed has marked is no part of it. */
  beginStep(): void {
    this.marked = [];
  }

  /** Marks this place in the stream. */
  mark(at: number): void {
    let event = this.events[at];
    if (event === undefined) this.events[at] = event = new cuda.Event({ enableTiming: true });
    event.record(cuda.currentStream(this.device));
    this.marked.push(at);
  }

  /** Waits for the GPU and writes the times of the marks, on the clock of the host. */
  read(into: Float64Array): void {
    this.last.record(cuda.currentStream(this.device));
    this.last.synchronize();
    const now = performance.now();
    for (const at of this.marked) into[at] = now - this.events[at]!.elapsedTime(this.last);
    this.marked = [];
  }
}
