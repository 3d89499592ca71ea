/** @file Process groups: threads of this process, processes and machines. */
export { ANY_TAG, Channel, type Message, type Outgoing, type RecvOptions, type SendOptions } from './channel.ts';
export {
  DeviceLane,
  type LaneOptions,
  type PostedTensors,
  packFormat,
  type TensorFormat,
} from './device-lane.ts';
export { freePort, type RankVariable, rankEnvironment } from './environment.ts';
export { DistributedError, type OperationDetails } from './errors.ts';
export * from './functions.ts';
export { setGeneration, watchGenerations } from './generation.ts';
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
export type { Json } from './json.ts';
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
} from './make-group.ts';
export type * from './process-group.ts';
export { fileStore, hashStore, Store, type StoreOptions, type TcpStoreOptions, tcpStore } from './store.ts';
export { getNumThreads, numThreadsFromEnvironment, setNumThreads, threadsPerRank } from './thread-settings.ts';
export { RankError, type SpawnOptions, spawnThreads, type ThreadRanks } from './threads.ts';
export { type AsyncWaitOptions, type WaitOptions, Work } from './work.ts';
