/** @file A process group: ranks that exchange tensors, whether they are threads, processes or machines. */
import type { Device } from '../../tensor/device.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import type { Json } from '../base/json.ts';
import type { WaitOptions, Work } from '../base/work.ts';
import type { Channel, RecvOptions, SendOptions } from './channel.ts';
import type { DeviceLane, LaneOptions } from './device-lane.ts';

/** What carries the messages: worker threads of this process, TCP between processes, GPUs, or each where its tensors are. */
export type Backend = 'thread' | 'gloo' | 'nccl' | 'cpu:gloo,cuda:nccl';

/** How values of several ranks become one. `avg` is for floating-point and complex tensors. */
export type ReduceOp = 'sum' | 'avg' | 'product' | 'min' | 'max';

/** Options of sends and receives of known shape. */
export interface PointToPointOptions extends WaitOptions {
  /** Messages are matched by tag; 0 where none is given. */
  readonly tag?: number | undefined;
}

/** Options of a collective. */
export interface CollectiveOptions extends WaitOptions {
  /** Return a `Work` at once instead of waiting. */
  readonly asyncOp?: boolean | undefined;
}

/** Options of a collective that reduces. */
export interface ReductionOptions extends CollectiveOptions {
  /** Default `sum`. */
  readonly op?: ReduceOp | undefined;
}

/** Options of `allToAll`. */
export interface AllToAllOptions extends CollectiveOptions {
  /** What to fill, one tensor per rank, where shapes differ between ranks. */
  readonly outputs?: readonly Tensor[] | undefined;
}

/** Where to wait for the operation. */
export interface Async {
  readonly asyncOp: true;
}

/** One send or receive of a batch. */
export interface PointToPoint {
  readonly kind: 'send' | 'recv';
  readonly tensor: Tensor;
  readonly peer: number;
  readonly tag?: number | undefined;
}

/** Options of a subgroup. */
export interface NewGroupOptions {
  readonly timeoutMs?: number | undefined;
  readonly name?: string | undefined;
}

/**
 * A group of ranks. Ranks are those of the group, 0 to size - 1. All ranks must call its collectives in the same order.
 *
 * @example const group = initProcessGroup(); group.allReduce(grad, { op: 'avg' }); group.close()
 */
export interface ProcessGroup {
  readonly name: string;
  readonly backend: Backend;
  readonly rank: number;
  readonly size: number;
  /** The time limit of waits that give none. */
  readonly timeoutMs: number;
  /** Whether this rank has not left it. @example if (!group.isOpen) group = distributed.getDefaultGroup() */
  readonly isOpen: boolean;

  /** Sends a tensor of a shape that the receiver knows; returns when it may be changed. */
  send(tensor: Tensor, peer: number, options?: PointToPointOptions): void;
  /** Fills a tensor with a message. */
  recv(tensor: Tensor, peer: number, options?: PointToPointOptions): Tensor;
  /** Starts a send. */
  isend(tensor: Tensor, peer: number, options?: PointToPointOptions): Work;
  /** Starts a receive. */
  irecv(tensor: Tensor, peer: number, options?: PointToPointOptions): Work<Tensor>;
  /** Starts several sends and receives at once, in the order given. */
  batchSendRecv(batch: readonly PointToPoint[], options?: WaitOptions): Work<unknown>[];
  /** Sends a tensor whose shape and dtype travel with it. */
  sendAny(tensor: Tensor, peer: number, options?: SendOptions & { readonly tag?: number | undefined }): void;
  /** Receives a tensor of any shape, or checks `dtype` and `shape` where they are given. */
  recvAny(peer: number, options?: RecvOptions & { readonly tag?: number | undefined }): Tensor;
  /** The ordered channel to one peer; also to this rank itself. */
  channel(peer: number): Channel;

  /** Whether tensors of a device go over lanes here, from GPU to GPU. @example group.hasLanes('cuda') */
  hasLanes(device: Device): boolean;
  /** One way for CUDA tensors to or from a peer, over NCCL. */
  lane(peer: number, options: LaneOptions): DeviceLane;

  /** Gives all ranks the values of one. */
  broadcast(tensor: Tensor, root: number, options: CollectiveOptions & Async): Work;
  broadcast(tensor: Tensor, root: number, options?: CollectiveOptions): void;
  /** Reduces in place: all ranks get the result. */
  allReduce(tensor: Tensor, options: ReductionOptions & Async): Work;
  allReduce(tensor: Tensor, options?: ReductionOptions): void;
  /** Reduces in place: one rank gets the result, the others keep their values. */
  reduce(tensor: Tensor, root: number, options: ReductionOptions & Async): Work;
  reduce(tensor: Tensor, root: number, options?: ReductionOptions): void;
  /** The tensors of all ranks, which must have the same shape. */
  allGather(tensor: Tensor, options: CollectiveOptions & Async): Work<Tensor[]>;
  allGather(tensor: Tensor, options?: CollectiveOptions): Tensor[];
  /** Reduces the i-th tensors of all ranks; rank i gets the result. */
  reduceScatter(tensors: readonly Tensor[], options: ReductionOptions & Async): Work<Tensor>;
  reduceScatter(tensors: readonly Tensor[], options?: ReductionOptions): Tensor;
  /** Sends the i-th tensor to rank i; returns what the ranks sent here. */
  allToAll(tensors: readonly Tensor[], options: AllToAllOptions & Async): Work<Tensor[]>;
  allToAll(tensors: readonly Tensor[], options?: AllToAllOptions): Tensor[];
  /** Waits for all ranks. */
  barrier(options: CollectiveOptions & Async): Work;
  barrier(options?: CollectiveOptions): void;

  /** Sends a JSON value. */
  sendObject(value: Json, peer: number, tag?: number): void;
  /** Receives a JSON value; `T` says what it is. */
  recvObject<T = Json>(peer: number, options?: PointToPointOptions): T;
  /** Gives all ranks the JSON value of one; the others' values are ignored. */
  broadcastObject<T = Json>(value: Json | undefined, root: number, options?: WaitOptions): T;
  /** The JSON values of all ranks. */
  allGatherObject<T = Json>(value: Json, options?: WaitOptions): T[];

  /** A group of some of these ranks. All ranks must call it, in the same order; those not in it get null. */
  newGroup(ranks: readonly number[], options?: NewGroupOptions): ProcessGroup | null;
  /** Ends all waits of this group now and from now on, here and, over connections, at the other ranks. */
  abort(reason: string): void;
  /** Waits until what was sent has left, at most 10 seconds, then leaves the group and those made from it. Closing twice does nothing. */
  close(options?: WaitOptions): void;
  [Symbol.dispose](): void;
}
