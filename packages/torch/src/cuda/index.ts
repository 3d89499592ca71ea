/** @file `cuda`: GPUs, streams, events, memory, graphs. */
export * from './device.ts';
export { type CaptureOptions, CudaGraph, captureStream, isCurrentStreamCapturing } from './graph.ts';
export { isAvailable } from './native.ts';
export * from './stream.ts';
