/** @file The process group of all backends, over the addon's groups. */

import { checkOptions, TorchError } from '../../base/errors.ts';
import { callOp } from '../../op/call.ts';
import type { Device } from '../../tensor/device.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { explain, type OperationDetails } from '../base/errors.ts';
import { type Json, toJson } from '../base/json.ts';
import { dist } from '../base/native.ts';
import { checkTimeout } from '../base/store.ts';
import { type WaitOptions, Work } from '../base/work.ts';
import { ArgumentChecks, collectiveOptions } from './argument-checks.ts';
import { Channel, type ChannelEnd, type RecvOptions, type SendOptions } from './channel.ts';
import { DeviceLane, type LaneGround, type LaneOptions } from './device-lane.ts';
import { forgetAtExit, leaveAtExit } from './exit.ts';
import type {
  AllToAllOptions,
  Async,
  Backend,
  CollectiveOptions,
  NewGroupOptions,
  PointToPoint,
  PointToPointOptions,
  ProcessGroup,
  ReductionOptions,
} from './process-group.ts';

/** What a rank is in a group: the group's name and size, its own number there, and the time limit of its waits. */
export interface GroupMember {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly timeoutMs: number;
}

/** How a group of the addon was made, and how to make more of its kind. */
export interface GroupParts extends GroupMember {
  readonly backend: Backend;
  /** The addon's group. */
  readonly handle: number;
  /** The addon's endpoint for channels, where the backend has one from the start. */
  readonly endpoint?: number | undefined;
  /** A group of the same ranks that carries objects and channels where this backend cannot. */
  readonly companion?: Group | undefined;
  /** NCCL for CUDA tensors, where it is there. */
  readonly nccl?: NcclPart | undefined;
  /** Makes a group of some ranks of this one; called only by its members. */
  readonly makeGroup: (member: GroupMember) => Group;
}

/** The part of a group that is over NCCL. */
export interface NcclPart {
  /** The addon's group for CUDA tensors; made when it is first asked for, by all ranks with their first such collective. */
  handle(): number;
  /** The same, if it was made. */
  made(): number | undefined;
  readonly lanes: LaneGround;
}

/** How long `close` waits, unless told otherwise, for messages that nobody has taken yet. */
const CLOSE_MS = 10_000;
/** How long a process that fails waits until the others have what it sent. */
const LEAVE_MS = 5000;

/** A process group over threads, gloo or NCCL. Make one with `initProcessGroup`, `threadGroup` or `glooGroup`. */
export class Group implements ProcessGroup {
  readonly name: string;
  readonly backend: Backend;
  readonly rank: number;
  readonly size: number;
  readonly timeoutMs: number;
  private readonly parts: GroupParts;
  private readonly check: ArgumentChecks;
  private open = true;
  private aborted = false;
  private endpoint: number | undefined;
  private readonly channels = new Map<number, Channel>();
  private readonly lanes: DeviceLane[] = [];
  private readonly subgroups: Group[] = [];
  private subgroupCount = 0;

  constructor(parts: GroupParts) {
    this.parts = parts;
    this.name = parts.name;
    this.backend = parts.backend;
    this.rank = parts.rank;
    this.size = parts.size;
    this.timeoutMs = parts.timeoutMs;
    this.endpoint = parts.endpoint;
    this.check = new ArgumentChecks(parts);
    if (this.backend !== 'thread') leaveAtExit(this);
  }

  get isOpen(): boolean {
    return this.open;
  }

  // --- point to point

  send(tensor: Tensor, peer: number, options?: PointToPointOptions): void {
    this.startSend('send', tensor, peer, options).wait();
  }

  recv(tensor: Tensor, peer: number, options?: PointToPointOptions): Tensor {
    return this.startRecv('recv', tensor, peer, options).wait();
  }

  isend(tensor: Tensor, peer: number, options?: PointToPointOptions): Work {
    return this.startSend('isend', tensor, peer, options);
  }

  irecv(tensor: Tensor, peer: number, options?: PointToPointOptions): Work<Tensor> {
    return this.startRecv('irecv', tensor, peer, options);
  }

  batchSendRecv(batch: readonly PointToPoint[], options?: WaitOptions): Work<unknown>[] {
    checkOptions('batchSendRecv', options, ['timeoutMs']);
    for (const { kind, tensor, peer } of batch) {
      if (kind !== 'send' && kind !== 'recv') {
        throw new TorchError('BAD_ARGUMENT', `batchSendRecv: kind is ${String(kind)}; give 'send' or 'recv'`);
      }
      this.check.tensor('batchSendRecv', tensor);
      this.check.peer('batchSendRecv', peer);
    }
    const [first] = batch;
    const together = first !== undefined && this.isOverNccl(first.tensor);
    if (together) dist.groupCoalesce(this.handleFor(first.tensor), true);
    const works = batch.map(({ kind, tensor, peer, tag }) => {
      const each = { tag, timeoutMs: options?.timeoutMs };
      return kind === 'send'
        ? this.startSend('batchSendRecv send', tensor, peer, each)
        : this.startRecv('batchSendRecv recv', tensor, peer, each);
    });
    if (!together) return works;
    const all = this.start({ operation: 'batchSendRecv' }, options?.timeoutMs, {
      on: first.tensor,
      call: (handle) => dist.groupCoalesce(handle, false)!,
      result: () => works.map((work) => work.wait()),
    });
    return [all];
  }

  sendAny(tensor: Tensor, peer: number, options?: SendOptions & { readonly tag?: number | undefined }): void {
    checkOptions('sendAny', options, ['tag', 'give']);
    this.check.tensor('sendAny', tensor, false);
    this.channel(peer).send(
      options?.tag ?? 0,
      tensor,
      options?.give === undefined ? undefined : { give: options.give },
    );
  }

  recvAny(peer: number, options?: RecvOptions & { readonly tag?: number | undefined }): Tensor {
    if (options === undefined) return this.channel(peer).recv(0);
    const { tag, ...rest } = options;
    return this.channel(peer).recv(tag ?? 0, rest);
  }

  channel(peer: number): Channel {
    const known = this.channels.get(peer);
    if (known !== undefined) return known;
    if (this.parts.companion !== undefined) return this.parts.companion.channel(peer);
    this.check.peer('channel', peer, true);
    const end: ChannelEnd = {
      group: this.name,
      rank: this.rank,
      timeoutMs: this.timeoutMs,
      endpoint: () => this.openEndpoint(),
    };
    const made = new Channel(end, peer);
    this.channels.set(peer, made);
    return made;
  }

  hasLanes(device: Device): boolean {
    return this.parts.nccl !== undefined && device.startsWith('cuda');
  }

  lane(peer: number, options: LaneOptions): DeviceLane {
    checkOptions('lane', options, ['name', 'sends', 'window']);
    this.check.peer('lane', peer, false);
    if (this.parts.nccl === undefined)
      throw new TorchError(
        'NO_NCCL',
        `lane: the group '${this.name}' is over ${this.backend}; make it with the backend nccl or cpu:gloo,cuda:nccl`,
      );
    if (!this.open) throw new TorchError('CLOSED', `the group '${this.name}' is closed; make a new one`);
    const lane = new DeviceLane(this.parts.nccl.lanes, peer, options);
    this.lanes.push(lane);
    return lane;
  }

  // --- collectives

  broadcast(tensor: Tensor, root: number, options: CollectiveOptions & Async): Work;
  broadcast(tensor: Tensor, root: number, options?: CollectiveOptions): void;
  broadcast(tensor: Tensor, root: number, options?: CollectiveOptions): Work | void {
    checkOptions('broadcast', options, collectiveOptions);
    this.check.tensor('broadcast', tensor);
    this.check.peer('broadcast', root, true);
    return this.run('broadcast', options, {
      on: tensor,
      call: (handle, timeoutMs) => dist.groupBroadcast(handle, tensor.handle, root, timeoutMs),
      result: () => undefined,
    });
  }

  allReduce(tensor: Tensor, options: ReductionOptions & Async): Work;
  allReduce(tensor: Tensor, options?: ReductionOptions): void;
  allReduce(tensor: Tensor, options?: ReductionOptions): Work | void {
    const op = this.check.reduction('allReduce', [tensor], options);
    return this.run('allReduce', options, {
      on: tensor,
      call: (handle, timeoutMs) => dist.groupAllReduce(handle, tensor.handle, op, timeoutMs),
      result: () => undefined,
    });
  }

  reduce(tensor: Tensor, root: number, options: ReductionOptions & Async): Work;
  reduce(tensor: Tensor, root: number, options?: ReductionOptions): void;
  reduce(tensor: Tensor, root: number, options?: ReductionOptions): Work | void {
    const op = this.check.reduction('reduce', [tensor], options);
    this.check.peer('reduce', root, true);
    return this.run('reduce', options, {
      on: tensor,
      call: (handle, timeoutMs) => dist.groupReduce(handle, tensor.handle, root, op, timeoutMs),
      result: () => undefined,
    });
  }

  allGather(tensor: Tensor, options: CollectiveOptions & Async): Work<Tensor[]>;
  allGather(tensor: Tensor, options?: CollectiveOptions): Tensor[];
  allGather(tensor: Tensor, options?: CollectiveOptions): Work<Tensor[]> | Tensor[] {
    checkOptions('allGather', options, collectiveOptions);
    this.check.tensor('allGather', tensor);
    const outputs = Array.from({ length: this.size }, () => emptyLike(tensor));
    const handles = outputs.map((output) => output.handle);
    return this.run('allGather', options, {
      on: tensor,
      call: (handle, timeoutMs) => dist.groupAllGather(handle, handles, tensor.handle, timeoutMs),
      result: () => outputs,
    });
  }

  reduceScatter(tensors: readonly Tensor[], options: ReductionOptions & Async): Work<Tensor>;
  reduceScatter(tensors: readonly Tensor[], options?: ReductionOptions): Tensor;
  reduceScatter(tensors: readonly Tensor[], options?: ReductionOptions): Work<Tensor> | Tensor {
    const op = this.check.reduction('reduceScatter', tensors, options);
    this.check.list('reduceScatter', tensors, 'one per rank');
    if (this.backend !== 'thread') this.check.same('reduceScatter', tensors);
    const output = emptyLike(tensors[this.rank]!);
    const inputs = tensors.map((tensor) => tensor.handle);
    return this.run('reduceScatter', options, {
      on: output,
      call: (handle, timeoutMs) => dist.groupReduceScatter(handle, output.handle, inputs, op, timeoutMs),
      result: () => output,
    });
  }

  allToAll(tensors: readonly Tensor[], options: AllToAllOptions & Async): Work<Tensor[]>;
  allToAll(tensors: readonly Tensor[], options?: AllToAllOptions): Tensor[];
  allToAll(tensors: readonly Tensor[], options?: AllToAllOptions): Work<Tensor[]> | Tensor[] {
    checkOptions('allToAll', options, [...collectiveOptions, 'outputs']);
    this.check.list('allToAll', tensors, 'one for each rank');
    for (const tensor of tensors) this.check.tensor('allToAll', tensor);
    if (options?.outputs === undefined) this.check.same('allToAll', tensors);
    else this.check.list('allToAll', options.outputs, 'outputs, one from each rank');
    const outputs = options?.outputs === undefined ? tensors.map((tensor) => emptyLike(tensor)) : [...options.outputs];
    const to = outputs.map((tensor) => tensor.handle);
    const from = tensors.map((tensor) => tensor.handle);
    return this.run('allToAll', options, {
      on: tensors[0],
      call: (handle, timeoutMs) => dist.groupAllToAll(handle, to, from, timeoutMs),
      result: () => outputs,
    });
  }

  barrier(options: CollectiveOptions & Async): Work;
  barrier(options?: CollectiveOptions): void;
  barrier(options?: CollectiveOptions): Work | void {
    checkOptions('barrier', options, collectiveOptions);
    return this.run('barrier', options, {
      call: (handle, timeoutMs) => dist.groupBarrier(handle, timeoutMs),
      result: () => undefined,
    });
  }

  // --- objects

  sendObject(value: Json, peer: number, tag = 0): void {
    this.channel(peer).sendObject(value, tag);
  }

  recvObject<T = Json>(peer: number, options?: PointToPointOptions): T {
    checkOptions('recvObject', options, ['tag', 'timeoutMs']);
    return this.channel(peer).recvObject(options?.tag ?? 0, { timeoutMs: options?.timeoutMs });
  }

  broadcastObject<T = Json>(value: Json | undefined, root: number, options?: WaitOptions): T {
    checkOptions('broadcastObject', options, ['timeoutMs']);
    this.check.peer('broadcastObject', root, true);
    if (this.rank !== root) return this.channel(root).recvObject(OBJECT_BROADCAST, options);
    const json = toJson('broadcastObject', value);
    for (let peer = 0; peer < this.size; peer++) {
      if (peer !== root) this.channel(peer).sendObject(value as Json, OBJECT_BROADCAST);
    }
    return JSON.parse(json) as T;
  }

  allGatherObject<T = Json>(value: Json, options?: WaitOptions): T[] {
    checkOptions('allGatherObject', options, ['timeoutMs']);
    toJson('allGatherObject', value);
    for (let peer = 0; peer < this.size; peer++) this.channel(peer).sendObject(value, OBJECT_GATHER);
    return Array.from({ length: this.size }, (_, peer) => this.channel(peer).recvObject(OBJECT_GATHER, options));
  }

  // --- life

  newGroup(ranks: readonly number[], options?: NewGroupOptions): ProcessGroup | null {
    checkOptions('newGroup', options, ['timeoutMs', 'name']);
    const chosen = [...new Set(ranks)];
    if (chosen.length !== ranks.length || chosen.length === 0) {
      throw new TorchError('RANK', `newGroup: ranks are [${ranks.join(', ')}]; give at least one, each once`);
    }
    for (const rank of chosen) this.check.peer('newGroup', rank, true);
    const name = `${this.name}/${options?.name ?? ''}#${this.subgroupCount++}`;
    const rank = chosen.indexOf(this.rank);
    if (rank < 0) return null;
    const timeoutMs = checkTimeout('newGroup', options?.timeoutMs, this.timeoutMs);
    const made = this.parts.makeGroup({ name, rank, size: chosen.length, timeoutMs });
    this.subgroups.push(made);
    return made;
  }

  abort(reason: string): void {
    if (!this.open) return;
    this.aborted = true;
    dist.abortWaits(this.name, -1, reason);
    const beside = this.parts.nccl?.made();
    if (beside !== undefined && beside !== this.parts.handle) dist.groupAbort(beside, reason);
    dist.groupAbort(this.parts.handle, reason);
    this.parts.companion?.abort(reason);
  }

  /** The process ends: what was sent arrives, also where this rank has failed. */
  leave(exitCode: number): void {
    if (exitCode === 0 && !this.aborted) return this.close();
    this.abort(`it ended with exit code ${exitCode}`);
    dist.groupAwaitAbort(this.handle, LEAVE_MS);
    return undefined;
  }

  close(options?: WaitOptions): void {
    checkOptions('close', options, ['timeoutMs']);
    if (!this.open) return;
    forgetAtExit(this);
    for (const group of this.subgroups.splice(0)) group.close(options);
    try {
      if (this.aborted) dist.groupAwaitAbort(this.parts.handle, CLOSE_MS);
      else
        dist.groupFlush(
          this.parts.handle,
          checkTimeout('close', options?.timeoutMs, Math.min(this.timeoutMs, CLOSE_MS)),
        );
    } catch (error) {
      const code = error instanceof TorchError ? error.code : '';
      // Whoever is gone or aborted takes no more messages.
      if (!['ABORTED', 'PEER_LOST', 'TERMINATED'].includes(code))
        throw explain(error, this.details({ operation: 'close' }));
    } finally {
      for (const lane of this.lanes.splice(0)) lane.close();
      this.open = false;
      const beside = this.parts.nccl?.made();
      if (beside !== undefined && beside !== this.parts.handle) dist.groupClose(beside);
      if (this.endpoint !== undefined) dist.endpointClose(this.endpoint);
      dist.groupClose(this.parts.handle);
      this.parts.companion?.close(options);
    }
  }

  [Symbol.dispose](): void {
    this.close();
  }

  // --- inside

  /** The addon's group. */
  get native(): number {
    return this.handle;
  }

  private get handle(): number {
    if (this.open) return this.parts.handle;
    throw new TorchError('CLOSED', `the group '${this.name}' is closed; make a new one`);
  }

  /** Whether a tensor goes over NCCL here. */
  private isOverNccl(tensor: Tensor | undefined): boolean {
    return this.backend === 'nccl' || (this.parts.nccl !== undefined && tensor?.isCuda === true);
  }

  private handleFor(tensor: Tensor | undefined): number {
    const { handle } = this;
    return this.backend !== 'nccl' && this.isOverNccl(tensor) ? this.parts.nccl!.handle() : handle;
  }

  private openEndpoint(): number {
    if (!this.open) throw new TorchError('CLOSED', `the group '${this.name}' is closed; make a new one`);
    this.endpoint ??= dist.groupEndpoint(this.parts.handle);
    return this.endpoint;
  }

  private details(what: { operation: string; peer?: number; tag?: number }): OperationDetails {
    return { group: this.name, rank: this.rank, ...what };
  }

  private startSend(operation: string, tensor: Tensor, peer: number, options?: PointToPointOptions): Work {
    const tag = this.check.message(operation, tensor, peer, options);
    return this.start({ operation, peer, tag }, options?.timeoutMs, {
      on: tensor,
      call: (handle) => dist.groupSend(handle, tensor.handle, peer, tag),
      result: () => undefined,
    });
  }

  private startRecv(operation: string, tensor: Tensor, peer: number, options?: PointToPointOptions): Work<Tensor> {
    const tag = this.check.message(operation, tensor, peer, options);
    return this.start({ operation, peer, tag }, options?.timeoutMs, {
      on: tensor,
      call: (handle) => dist.groupReceive(handle, tensor.handle, peer, tag),
      result: () => tensor,
    });
  }

  private run<T>(operation: string, options: CollectiveOptions | undefined, action: Action<T>): Work<T> | T {
    const work = this.start({ operation }, options?.timeoutMs, action);
    return options?.asyncOp === true ? work : work.wait();
  }

  private start<T>(
    what: { operation: string; peer?: number; tag?: number },
    timeout: number | undefined,
    action: Action<T>,
  ): Work<T> {
    const timeoutMs = checkTimeout(what.operation, timeout, this.timeoutMs);
    const details = this.details(what);
    try {
      return new Work(action.call(this.handleFor(action.on), timeoutMs), {
        ...details,
        timeoutMs,
        result: action.result,
      });
    } catch (error) {
      throw explain(error, details);
    }
  }
}

interface Action<T> {
  /** What decides, in a group with a backend per device, which is used. */
  readonly on?: Tensor | undefined;
  readonly call: (handle: number, timeoutMs: number) => number;
  readonly result: () => T;
}

const OBJECT_BROADCAST = 2 ** 40;
const OBJECT_GATHER = 2 ** 40 + 1;

function emptyLike(tensor: Tensor): Tensor {
  return callOp('aten::empty.memory_format', [tensor.shape], { dtype: tensor.dtype, device: tensor.device }) as Tensor;
}
