/** @file GPUs: how many, which one, how full. */
import { native } from '../addon/addon.ts';
import { useGpu } from '../tensor/own-gpu.ts';
import { deviceIndex, nativeCuda } from './native.ts';

/** What a GPU is. */
export interface DeviceProperties {
  readonly name: string;
  readonly totalMemory: number;
  readonly multiProcessorCount: number;
  readonly major: number;
  readonly minor: number;
}

/** How much memory the allocator holds on a device, in bytes. */
export interface MemoryStats {
  readonly allocated: number;
  readonly peakAllocated: number;
  readonly reserved: number;
  readonly peakReserved: number;
}

/** Number of GPUs; 0 where there is no CUDA. */
export function deviceCount(): number {
  return native.cudaDeviceCount();
}

/** The device that `'cuda'` means in this thread. */
export function currentDevice(): number {
  return nativeCuda().currentDevice();
}

/** Sets the device that `'cuda'` means in this thread. @example cuda.setDevice(1) */
export function setDevice(device: number | string): void {
  useGpu(deviceIndex(device));
}

/** Whether a GPU can read the memory of another. @example cuda.canDeviceAccessPeer(0, 1) */
export function canDeviceAccessPeer(device: number | string, other: number | string): boolean {
  return nativeCuda().canAccessPeer(deviceIndex(device), deviceIndex(other));
}

/** The version of NCCL, or null where the CUDA addon was built without it. @example cuda.ncclVersion() // '2.28.9' */
export function ncclVersion(): string | null {
  const version = nativeCuda().ncclVersion();
  if (version === 0) return null;
  const scale = version < 10_000 ? 1000 : 10_000;
  return `${Math.floor(version / scale)}.${Math.floor((version % scale) / 100)}.${version % 100}`;
}

/** Waits until a device has done all its work. @example cuda.synchronize() */
export function synchronize(device?: number | string): void {
  nativeCuda().synchronize(deviceIndex(device));
}

/** Name and size of a device. @example cuda.getDeviceProperties(0).name */
export function getDeviceProperties(device?: number | string): DeviceProperties {
  const [name, totalMemory, multiProcessorCount, major, minor] = nativeCuda().properties(deviceIndex(device));
  return { name, totalMemory, multiProcessorCount, major, minor };
}

/** Bytes in use and reserved, now and at most since the last reset. */
export function memoryStats(device?: number | string): MemoryStats {
  const [allocated, peakAllocated, reserved, peakReserved] = nativeCuda().memoryStats(deviceIndex(device));
  return { allocated, peakAllocated, reserved, peakReserved };
}

/** Bytes that tensors use now. */
export function memoryAllocated(device?: number | string): number {
  return memoryStats(device).allocated;
}

/** The most bytes that tensors used since the last reset. */
export function maxMemoryAllocated(device?: number | string): number {
  return memoryStats(device).peakAllocated;
}

/** Bytes that the allocator holds now. */
export function memoryReserved(device?: number | string): number {
  return memoryStats(device).reserved;
}

/** The most bytes that the allocator held since the last reset. */
export function maxMemoryReserved(device?: number | string): number {
  return memoryStats(device).peakReserved;
}

/** Starts counting peaks anew. */
export function resetPeakMemoryStats(device?: number | string): void {
  nativeCuda().resetPeak(deviceIndex(device));
}

/** Gives unused memory back to the driver. */
export function emptyCache(): void {
  nativeCuda().emptyCache();
}

/** Free and total bytes, as the driver says. */
export function memGetInfo(device?: number | string): [free: number, total: number] {
  return nativeCuda().memoryInfo(deviceIndex(device));
}
