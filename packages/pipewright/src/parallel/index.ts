/** @file Data parallelism beside the pipeline: meshes and replicas. */
export { DeviceMesh, initDeviceMesh, type MeshDevice } from './device-mesh.ts';
export { DistributedDataParallel, type ReplicateOptions, replicate } from './replicate.ts';
