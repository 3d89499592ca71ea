/**
 * @file Which GPU `'cuda'` means: that of the local rank, modulo the GPUs that are visible. A rank that is a thread has a
 * stream of its own there, so that its work does not queue up behind that of the others.
 */
import { native } from '../addon/addon.ts';
import { isThreadRank, localRank } from '../base/local-rank.ts';

// Before CUDA is first asked for anything. A queue for each stream: messages that wait must not hold up what is computed. MPS
// has few of them for all its processes.
if (localRank() !== undefined && process.env['CUDA_MPS_PIPE_DIRECTORY'] === undefined)
  process.env['CUDA_DEVICE_MAX_CONNECTIONS'] ??= '32';

/** What `'cuda'` means in this thread; unknown before a GPU is first asked for. */
let own: number | undefined;

/** Chooses this thread's GPU, once, before a GPU is first used. */
export function chooseGpu(): void {
  if (own !== undefined) return;
  const visible = native.cudaDeviceCount();
  if (visible === 0) return;
  const rank = localRank();
  own = (rank ?? 0) % visible;
  if (rank !== undefined) native.useGpu(own, isThreadRank());
}

/** The GPU that `'cuda'` means in this thread: that of the local rank, unless another one was set. */
export function ownGpu(): number {
  chooseGpu();
  return own ?? 0;
}

/** Makes `'cuda'` mean another GPU in this thread. */
export function useGpu(index: number): void {
  own = index;
  native.useGpu(index, isThreadRank());
}
