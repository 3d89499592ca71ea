/** @file The functions of torch.distributed, on the default group or on `group`. Ranks are those of the group. */
import { checkObject } from '../base/checks.ts';
import type { Tensor } from '../tensor/tensor.ts';
import type { Json } from './base/json.ts';
import type { WaitOptions, Work } from './base/work.ts';
import { checkGroup } from './group/argument-checks.ts';
import type {
  AllToAllOptions,
  CollectiveOptions,
  PointToPoint,
  PointToPointOptions,
  ProcessGroup,
  ReductionOptions,
} from './group/process-group.ts';
import { getDefaultGroup } from './init.ts';

/** Which group; the default one where none is given. */
export interface In {
  readonly group?: ProcessGroup | null | undefined;
}

type Settings<T> = T & In;

/** Splits the group off the options. */
function inGroup<T extends object>(options: Settings<T> | undefined): [ProcessGroup, Omit<T, 'group'> | undefined] {
  if (options === undefined) return [getDefaultGroup(), undefined];
  checkObject('distributed', 'the options', options);
  const { group, ...rest } = options;
  if (group !== undefined && group !== null) checkGroup('distributed', 'the group', group);
  return [group ?? getDefaultGroup(), rest as Omit<T, 'group'>];
}

/** Sends a tensor. @example send(x, 1) */
export function send(tensor: Tensor, peer: number, options?: Settings<PointToPointOptions>): void {
  const [group, rest] = inGroup(options);
  group.send(tensor, peer, rest);
}

/** Fills a tensor with a message. @example recv(x, 0) */
export function recv(tensor: Tensor, peer: number, options?: Settings<PointToPointOptions>): Tensor {
  const [group, rest] = inGroup(options);
  return group.recv(tensor, peer, rest);
}

/** Starts a send. @example const work = isend(x, 1); work.wait() */
export function isend(tensor: Tensor, peer: number, options?: Settings<PointToPointOptions>): Work {
  const [group, rest] = inGroup(options);
  return group.isend(tensor, peer, rest);
}

/** Starts a receive. @example const work = irecv(x, 0); work.wait() */
export function irecv(tensor: Tensor, peer: number, options?: Settings<PointToPointOptions>): Work<Tensor> {
  const [group, rest] = inGroup(options);
  return group.irecv(tensor, peer, rest);
}

/** Starts several sends and receives. @example batchIsendIrecv([{ kind: 'send', tensor: x, peer: 1 }]) */
export function batchIsendIrecv(batch: readonly PointToPoint[], options?: Settings<WaitOptions>): Work<unknown>[] {
  const [group, rest] = inGroup(options);
  return group.batchSendRecv(batch, rest);
}

/** Gives all ranks the values of one. @example broadcast(weight, 0) */
export function broadcast(tensor: Tensor, root: number, options?: Settings<CollectiveOptions>): Work | void {
  const [group, rest] = inGroup(options);
  return group.broadcast(tensor, root, rest);
}

/** Reduces in place on all ranks. @example allReduce(grad, { op: 'avg' }) */
export function allReduce(tensor: Tensor, options?: Settings<ReductionOptions>): Work | void {
  const [group, rest] = inGroup(options);
  return group.allReduce(tensor, rest);
}

/** Reduces in place on one rank. @example reduce(loss, 0) */
export function reduce(tensor: Tensor, root: number, options?: Settings<ReductionOptions>): Work | void {
  const [group, rest] = inGroup(options);
  return group.reduce(tensor, root, rest);
}

/** The tensors of all ranks. @example const parts = allGather(x) */
export function allGather(tensor: Tensor, options?: In & WaitOptions): Tensor[] {
  const [group, rest] = inGroup(options);
  return group.allGather(tensor, rest);
}

/** Reduces the i-th tensors of all ranks for rank i. @example const mine = reduceScatter([a, b]) */
export function reduceScatter(tensors: readonly Tensor[], options?: In & Omit<ReductionOptions, 'asyncOp'>): Tensor {
  const [group, rest] = inGroup(options);
  return group.reduceScatter(tensors, rest);
}

/** Sends the i-th tensor to rank i. @example const parts = allToAll([a, b]) */
export function allToAll(tensors: readonly Tensor[], options?: In & Omit<AllToAllOptions, 'asyncOp'>): Tensor[] {
  const [group, rest] = inGroup(options);
  return group.allToAll(tensors, rest);
}

/** Waits for all ranks. @example barrier() */
export function barrier(options?: Settings<CollectiveOptions>): Work | void {
  const [group, rest] = inGroup(options);
  return group.barrier(rest);
}

/** Sends a JSON value. @example sendObject({ step: 3 }, 1) */
export function sendObject(value: Json, peer: number, options?: In & { readonly tag?: number | undefined }): void {
  const [group, rest] = inGroup(options);
  group.sendObject(value, peer, rest?.tag);
}

/** Receives a JSON value. @example const { step } = recvObject<{ step: number }>(0) */
export function recvObject<T = Json>(peer: number, options?: Settings<PointToPointOptions>): T {
  const [group, rest] = inGroup(options);
  return group.recvObject(peer, rest);
}

/** Gives all ranks the JSON value of one. @example const { lr } = broadcastObject<{ lr: number }>(rank === 0 ? { lr: 0.1 } : undefined, 0) */
export function broadcastObject<T = Json>(value: Json | undefined, root: number, options?: Settings<WaitOptions>): T {
  const [group, rest] = inGroup(options);
  return group.broadcastObject(value, root, rest);
}

/** The JSON values of all ranks. @example const losses = allGatherObject<number>(loss) */
export function allGatherObject<T = Json>(value: Json, options?: Settings<WaitOptions>): T[] {
  const [group, rest] = inGroup(options);
  return group.allGatherObject(value, rest);
}
