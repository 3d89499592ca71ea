/** @file The CUDA addon: what it exports, loaded when something of it is first used. */

import { native } from '../addon/addon.ts';
import { show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { loadCudaAddon } from '../setup/load-addon.ts';
import { chooseGpu } from '../tensor/own-gpu.ts';

/** A stream, event or graph of the addon. */
export interface NativeObject {
  readonly kind: 'external';
}

/** The CUDA addon's functions. */
export interface NativeCuda {
  deviceCount(): number;
  currentDevice(): number;
  setDevice(device: number): void;
  synchronize(device: number): void;
  properties(
    device: number,
  ): [name: string, totalMemory: number, multiprocessors: number, major: number, minor: number];
  createStream(device: number, highPriority: boolean): NativeObject;
  currentStream(device: number): NativeObject;
  defaultStream(device: number): NativeObject;
  setStream(stream: NativeObject): void;
  streamSynchronize(stream: NativeObject): void;
  streamQuery(stream: NativeObject): boolean;
  streamId(stream: NativeObject): bigint;
  streamDevice(stream: NativeObject): number;
  createEvent(timing: boolean): NativeObject;
  eventRecord(event: NativeObject, stream: NativeObject): void;
  eventBlock(event: NativeObject, stream: NativeObject): void;
  eventQuery(event: NativeObject): boolean;
  eventSynchronize(event: NativeObject): void;
  eventElapsed(start: NativeObject, end: NativeObject): number;
  memoryStats(device: number): [allocated: number, peakAllocated: number, reserved: number, peakReserved: number];
  resetPeak(device: number): void;
  emptyCache(): void;
  memoryInfo(device: number): [free: number, total: number];
  createGraph(): NativeObject;
  /** `mode`: a cudaStreamCaptureMode. */
  captureBegin(graph: NativeObject, mode: number, shareWith?: NativeObject): void;
  captureEnd(graph: NativeObject): void;
  captureAbort(graph: NativeObject): void;
  replay(graph: NativeObject): void;
  resetGraph(graph: NativeObject): void;
  isCapturing(): boolean;
  /** 22809 for 2.28.9; 0 where the addon was built without NCCL. */
  ncclVersion(): number;
  canAccessPeer(device: number, other: number): boolean;
}

let loaded: NativeCuda | null = null;

/** Whether a GPU can be used. */
export function isAvailable(): boolean {
  return native.cudaDeviceCount() > 0;
}

/** The CUDA addon, or an error that says why there is none. */
export function nativeCuda(): NativeCuda {
  if (loaded !== null) return loaded;
  chooseGpu();
  const problem = native.cudaProblem();
  if (problem !== '')
    throw new TorchError('NO_CUDA', `cuda: there is no CUDA here: ${problem}; see npx pipewright doctor`);
  if (!isAvailable())
    throw new TorchError('NO_CUDA', 'cuda: libtorch finds no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES');
  loaded = loadCudaAddon() as NativeCuda | null;
  if (loaded === null) {
    throw new TorchError(
      'NO_CUDA_ADDON',
      'cuda: streams, events and graphs need the CUDA addon, which was not built: install a CUDA toolkit (headers), then npx pipewright setup',
    );
  }
  return loaded;
}

/** The number of a device given as a number or as `cuda:1`; the current one when nothing is said. */
export function deviceIndex(device?: number | string): number {
  if (device === undefined) return nativeCuda().currentDevice();
  const index =
    typeof device === 'number'
      ? device
      : device === 'cuda'
        ? nativeCuda().currentDevice()
        : typeof device === 'string'
          ? Number(/^cuda:(\d+)$/.exec(device)?.[1] ?? Number.NaN)
          : Number.NaN;
  const count = native.cudaDeviceCount();
  if (!Number.isInteger(index) || index < 0 || index >= count)
    throw new TorchError('DEVICE', `cuda: there is no device ${show(device)}; this machine has ${count}`);
  return index;
}
