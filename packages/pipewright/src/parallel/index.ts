/** @file Data parallelism beside the pipeline: meshes, replicas and shards. */
export { DeviceMesh, initDeviceMesh, type MeshDevice } from './device-mesh.ts';
export { type FullyShardOptions, fullyShard, type MixedPrecisionPolicy, withWholeParameters } from './fully-shard.ts';
export { meshCoordinate } from './mesh-coordinate.ts';
export { DistributedDataParallel, type ReplicateOptions, replicate } from './replicate.ts';
export { type Shard, shardOf } from './shard.ts';
export type { ShardLevel } from './unit-settings.ts';
