/** @file What the addon exports for stores, groups, channels and work handles. All of them are small integers here. */
import { native } from '../../addon/addon.ts';

/** A message from the addon: tag, header, then handles (null where the sender had no tensor). */
export type NativeMessage = [tag: number, header: string, ...handles: (number | null)[]];

/** The addon's functions of this folder. Times are in milliseconds. */
export interface NativeDistributed {
  tcpStore(
    host: string,
    port: number,
    server: boolean,
    ranks: number,
    timeoutMs: number,
    wait: boolean,
    listen: string | null,
    secret: string | null,
    rank: number,
  ): number;
  storePort(store: number): number;
  hashStore(name: string): number;
  fileStore(path: string, ranks: number): number;
  prefixStore(prefix: string, store: number): number;
  storeSet(store: number, key: string, value: string | Uint8Array): void;
  storeGet(store: number, key: string, timeoutMs: number): Uint8Array;
  storeWait(store: number, keys: readonly string[], timeoutMs: number): void;
  storeAdd(store: number, key: string, value: number): number;
  storeCheck(store: number, keys: readonly string[]): boolean;
  storeDelete(store: number, key: string): boolean;
  storeCount(store: number): number;
  storeCompareSet(store: number, key: string, expected: string | Uint8Array, wanted: string | Uint8Array): Uint8Array;
  storeClose(store: number): void;
  watchGenerations(file: string, word: number): void;
  setGeneration(number: number): void;

  createThreads(name: string, size: number, bound: number): void;
  forgetThreads(name: string): boolean;
  joinThreads(name: string, rank: number, size: number, bound: number): number;
  /** For leak tests: thread groups, and ranks of all groups, alive in this process. */
  liveGroups(): [threadGroups: number, ranks: number];
  endpointSend(
    endpoint: number,
    peer: number,
    space: number,
    tag: number,
    tensors: number | readonly (number | null)[] | null,
    header: string | null,
    timeoutMs: number,
  ): void;
  /** A handle for one tensor without a header, where the tag was given; a message otherwise. */
  endpointReceive(
    endpoint: number,
    peer: number,
    space: number,
    tag: number,
    timeoutMs: number,
  ): number | NativeMessage;
  endpointReceiveAsync(
    endpoint: number,
    peer: number,
    space: number,
    tag: number,
    timeoutMs: number,
    key: number,
  ): Promise<NativeMessage>;
  endpointHas(endpoint: number, peer: number, space: number, tag: number): boolean;
  endpointPending(endpoint: number): number;
  endpointClose(endpoint: number): void;
  abortWaits(group: string, rank: number, reason: string): number;
  cancelWaits(group: string, rank: number, reason: string): number;
  cancelAsync(key: number): void;

  glooGroup(
    store: number,
    name: string,
    rank: number,
    size: number,
    timeoutMs: number,
    networkInterface: string | null,
    host: string | null,
  ): number;
  threadGroup(endpoint: number): number;
  ncclGroup(store: number, name: string, rank: number, size: number, timeoutMs: number, device: number): number;
  backendRegistry(): bigint;
  groupEndpoint(group: number): number;
  groupAbort(group: number, reason: string): void;
  groupAwaitAbort(group: number, timeoutMs: number): void;
  groupFlush(group: number, timeoutMs: number): void;
  groupClose(group: number): void;
  groupSend(group: number, tensor: number, peer: number, tag: number): number;
  groupReceive(group: number, tensor: number, peer: number, tag: number): number;
  groupBroadcast(group: number, tensor: number, root: number, timeoutMs: number): number;
  groupAllReduce(group: number, tensor: number, op: number, timeoutMs: number): number;
  groupReduce(group: number, tensor: number, root: number, op: number, timeoutMs: number): number;
  groupAllGather(group: number, outputs: readonly number[], input: number, timeoutMs: number): number;
  groupReduceScatter(group: number, output: number, inputs: readonly number[], op: number, timeoutMs: number): number;
  groupAllToAll(group: number, outputs: readonly number[], inputs: readonly number[], timeoutMs: number): number;
  groupBarrier(group: number, timeoutMs: number): number;
  groupCoalesce(group: number, on: boolean): number | undefined;
  laneOpen(
    beside: number,
    store: number,
    name: string,
    sends: boolean,
    peer: number,
    device: number,
    window: number,
    timeoutMs: number,
  ): number;
  laneReady(lane: number, timeoutMs: number): void;
  laneSend(lane: number, tensors: readonly number[]): number;
  laneReceive(lane: number, format: readonly number[]): number[];
  laneWait(lane: number, message: number): void;
  laneJoin(lane: number): void;
  laneMark(lane: number): void;
  laneForget(lane: number): void;
  laneProgress(lane: number): [begun: number, done: number];
  laneClose(lane: number, timeoutMs: number): void;
  workWait(work: number, timeoutMs: number): void;
  workDone(work: number, timeoutMs: number, key: number): Promise<void>;
  workIsOver(work: number): boolean;
  workRelease(work: number): void;
  liveWorks(): number;
}

/** The addon, as this folder sees it. */
export const dist: NativeDistributed = native as unknown as NativeDistributed;
