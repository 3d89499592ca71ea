/**
 * @file CUDA graphs: the kernels of a piece of code recorded once and replayed with one call. Replays read and write the
 * very tensors of the capture: copy new inputs into them, read results out of them. Shapes are fixed, and nothing in the
 * piece may wait for the GPU (no `item()`). Random numbers come from the default generator, which replays advance.
 */
import { show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { synchronize } from './device.ts';
import { type NativeObject, nativeCuda } from './native.ts';
import { currentStream, Stream, withStream } from './stream.ts';

/** In the order of CUDA's own numbers. */
const captureModes = ['global', 'thread_local', 'relaxed'] as const;

/** How a piece of work is captured. */
export interface CaptureOptions {
  /** How often it runs before. Default 3. */
  readonly warmup?: number | undefined;
  /** Another graph whose memory this one may use too: the two must not run at the same time. */
  readonly shareMemoryWith?: CudaGraph | undefined;
  /**
   * Which threads may not wait for the GPU nor ask for memory meanwhile: all of this process, this one, or none. Default
   * `'global'`; `'relaxed'` where other threads take part in the capture.
   */
  readonly captureErrorMode?: (typeof captureModes)[number] | undefined;
}

/** One per GPU for all captures of this thread: libtorch has 32 in all, which the ranks of a process share. */
const captureStreams = new Map<number, Stream>();

/**
 * The stream of this thread in which work is captured, on the current GPU.
 *
 * @example cuda.withStream(cuda.captureStream(), () => joined.waitStream(cuda.currentStream()))
 */
export function captureStream(): Stream {
  const device = currentStream().device;
  let side = captureStreams.get(device);
  if (side === undefined) captureStreams.set(device, (side = new Stream()));
  return side;
}

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
  capture<T>(body: () => T, options?: CaptureOptions): T {
    if (this.state === 'ready')
      throw new TorchError('GRAPH', 'CudaGraph.capture: this graph has been captured; reset() it or make another');
    const mode = captureModes.indexOf(options?.captureErrorMode ?? 'global');
    if (mode < 0)
      throw new TorchError(
        'BAD_ARGUMENT',
        `CudaGraph.capture: captureErrorMode is ${show(options?.captureErrorMode)}; give one of ${captureModes.join(', ')}`,
      );
    const side = captureStream();
    side.waitStream(currentStream());
    const result = withStream(side, () => {
      for (let i = 0; i < (options?.warmup ?? 3); i++) body();
      synchronize();
      nativeCuda().captureBegin(this.object, mode, options?.shareMemoryWith?.object);
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
