/** @file Process groups: threads of this process, processes and machines. */

export { DistributedError, type OperationDetails } from './base/errors.ts';
export { setGeneration, watchGenerations } from './base/generation.ts';
export type { Json } from './base/json.ts';
export { fileStore, hashStore, Store, type StoreOptions, type TcpStoreOptions, tcpStore } from './base/store.ts';
export { type AsyncWaitOptions, type WaitOptions, Work } from './base/work.ts';
export { freePort, type RankVariable, rankEnvironment } from './environment.ts';
export * from './functions.ts';
export {
  ANY_TAG,
  Channel,
  type Message,
  type MessageOptions,
  type Outgoing,
  type RecvOptions,
  type SendOptions,
} from './group/channel.ts';
export {
  DeviceLane,
  type LaneOptions,
  type PostedTensors,
  packFormat,
  type TensorFormat,
} from './group/device-lane.ts';
export {
  abortGroup,
  cancelWaits,
  type GlooGroupOptions,
  type GroupOptions,
  glooGroup,
  mixedGroup,
  type NcclGroupOptions,
  ncclGroup,
  type ThreadGroupOptions,
  threadGroup,
} from './group/make-group.ts';
export type * from './group/process-group.ts';
export {
  destroyProcessGroup,
  getBackend,
  getDefaultGroup,
  getLocalRank,
  getRank,
  getWorldSize,
  type InitOptions,
  initProcessGroup,
  isInitialized,
  newGroup,
} from './init.ts';
export { getNumThreads, numThreadsFromEnvironment, setNumThreads, threadsPerRank } from './threads/settings.ts';
export { RankError, type SpawnOptions, spawnThreads, type ThreadRanks } from './threads/spawn.ts';
