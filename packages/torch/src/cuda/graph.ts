/**
 * @file CUDA graphs: the kernels of a piece of code recorded once and replayed with one call. Replays read and write the
 * very tensors of the capture: copy new inputs into them, read results out of them. Shapes are fixed, and nothing in the
 * piece may wait for the GPU (no `item()`). Random numbers come from the default generator, which replays advance.
 */
import { TorchError } from '../base/errors.ts';
import { synchronize } from './device.ts';
import { type NativeObject, nativeCuda } from './native.ts';
import { currentStream, Stream, withStream } from './stream.ts';

/**
 * A recorded piece of GPU work.
 *
 * @example const graph = new cuda.CudaGraph(); const y = graph.capture(() => model.forward(x)); x.copy_(next); graph.replay()
 */
export class CudaGraph {
  private readonly object: NativeObject;
  private state: 'empty' | 'ready' = 'empty';

  constructor() {
    this.object = nativeCuda().createGraph();
  }

  /**
   * Runs `body` once on a side stream and records its kernels; returns what it returns. Run it a few times before
   * (`warmup`, by default 3 times), so that libraries have set themselves up and gradients exist.
   */
  capture<T>(body: () => T, options?: { warmup?: number; shareMemoryWith?: CudaGraph }): T {
    if (this.state === 'ready')
      throw new TorchError('GRAPH', 'CudaGraph.capture: this graph has been captured; reset() it or make another');
    const side = new Stream();
    side.waitStream(currentStream());
    const result = withStream(side, () => {
      for (let i = 0; i < (options?.warmup ?? 3); i++) body();
      synchronize();
      nativeCuda().captureBegin(this.object, options?.shareMemoryWith?.object);
      try {
        const value = body();
        nativeCuda().captureEnd(this.object);
        return value;
      } catch (error) {
        nativeCuda().captureAbort(this.object);
        const why = error instanceof Error ? error.message : String(error);
        throw new TorchError(
          'GRAPH',
          `CudaGraph.capture: this piece cannot be captured: ${why}; it must not wait for the GPU (item(), toArray(), printing) nor copy from pageable memory`,
          { cause: error },
        );
      }
    });
    currentStream().waitStream(side);
    this.state = 'ready';
    return result;
  }

  /** Runs the recorded kernels again, in the current stream. */
  replay(): void {
    if (this.state !== 'ready') throw new TorchError('GRAPH', 'CudaGraph.replay: capture() something first');
    nativeCuda().replay(this.object);
  }

  /** Forgets the recording and frees its memory. */
  reset(): void {
    nativeCuda().resetGraph(this.object);
    this.state = 'empty';
  }
}

/** Whether the current stream is being captured. */
export function isCurrentStreamCapturing(): boolean {
  return nativeCuda().isCapturing();
}
