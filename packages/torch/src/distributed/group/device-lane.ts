/**
 * @file Lanes: CUDA tensors from one rank to another over NCCL, one way, in order and without headers. Both ends know what
 * comes: a receive gives shapes and types. Nothing here makes the host wait; a lane has a stream of its own.
 */
import { checkGiven, show } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { DType } from '../../tensor/dtype.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { explain } from '../base/errors.ts';
import { dist } from '../base/native.ts';

/** A tensor that will come. */
export interface TensorFormat {
  readonly dtype: DType;
  readonly shape: readonly number[];
}

/** A message that was posted: its values are there for a stream that has waited. */
export interface PostedTensors {
  readonly tensors: Tensor[];
  /** Lets this thread's stream wait for the values. */
  wait(): void;
}

/** What a lane is for. */
export interface LaneOptions {
  /** The same at both ends, and different from that of other lanes of the group. */
  readonly name: string;
  /** Whether this end sends. */
  readonly sends: boolean;
  /**
   * How many messages may be under way before the computing stream waits for the oldest to leave: what bounds the memory of
   * messages. Default 4.
   */
  readonly window?: number | undefined;
}

/** What a lane needs of its group. */
export interface LaneGround {
  readonly group: string;
  readonly rank: number;
  readonly timeoutMs: number;
  /** The addon's group that carries objects: it knows when a rank is lost. */
  readonly beside: number;
  readonly store: number;
  readonly device: number;
}

/**
 * One way for CUDA tensors between two ranks. Make it with `group.lane(peer, options)` on both, in any order, then call
 * `ready()`.
 *
 * @example const lane = group.lane(1, { name: 'activations', sends: true }); lane.ready(); lane.send([y])
 */
export class DeviceLane {
  readonly peer: number;
  readonly name: string;
  readonly sends: boolean;
  private readonly ground: LaneGround;
  private readonly handle: number;

  constructor(ground: LaneGround, peer: number, options: LaneOptions) {
    checkGiven(
      'DeviceLane',
      typeof ground === 'object' && ground !== null,
      ['the first argument', ground],
      'what lanes of a group stand on',
    );
    checkGiven(
      'DeviceLane',
      typeof options === 'object' && options !== null,
      ['the options', options],
      '{ name, sends }',
    );
    const { name, sends, window = 4 } = options;
    if (!Number.isInteger(window) || window < 1)
      throw new TorchError('BAD_ARGUMENT', `lane: window is ${show(window)}; give a whole number, at least 1`);
    this.ground = ground;
    this.peer = peer;
    this.name = name;
    this.sends = sends;
    const { beside, store, device, timeoutMs } = ground;
    this.handle = this.explained('lane', () =>
      dist.laneOpen(beside, store, name, sends, peer, device, window, timeoutMs),
    );
  }

  /** Returns when both ends are connected. */
  ready(timeoutMs: number = this.ground.timeoutMs): void {
    this.explained('lane.ready', () => dist.laneReady(this.handle, timeoutMs));
  }

  /** Sends tensors as one message; they may be freed at once, and must not be changed before the lane was joined. */
  send(tensors: readonly Tensor[]): void {
    this.explained('lane.send', () =>
      dist.laneSend(
        this.handle,
        tensors.map((tensor) => tensor.handle),
      ),
    );
  }

  /** Posts the receive of a message. */
  recv(format: readonly TensorFormat[]): PostedTensors {
    return this.recvPacked(packFormat(format));
  }

  /** The same, with what `packFormat` made of the format once. */
  recvPacked(format: readonly number[]): PostedTensors {
    const [number, ...handles] = this.explained('lane.recv', () => dist.laneReceive(this.handle, format)) as [
      number,
      ...number[],
    ];
    return {
      tensors: handles.map((handle) => Tensor.adopt(handle)),
      wait: () => this.explained('lane.recv', () => dist.laneWait(this.handle, number)),
    };
  }

  /** Lets this thread's stream wait for all that was sent and posted. */
  join(): void {
    this.explained('lane.join', () => dist.laneJoin(this.handle));
  }

  /** Whether a tensor can go over this lane. */
  carries(tensor: Tensor): boolean {
    return tensor.device === `cuda:${this.ground.device}`;
  }

  /** Puts a mark into this thread's stream for whoever watches the lane: after the replay of a graph. */
  mark(): void {
    this.explained('lane.mark', () => dist.laneMark(this.handle));
  }

  /** A capture has failed: what was begun in it will never happen. */
  forget(): void {
    dist.laneForget(this.handle);
  }

  /** How many messages were begun, and how many of them the GPU is known to be done with; an error where the lane failed. */
  progress(): { readonly begun: number; readonly done: number } {
    const [begun, done] = this.explained('lane.progress', () => dist.laneProgress(this.handle));
    return { begun, done };
  }

  /** Waits for the GPU to be done with it, at most so long, and lets go of it. */
  close(timeoutMs: number = 2000): void {
    dist.laneClose(this.handle, timeoutMs);
  }

  private explained<T>(operation: string, body: () => T): T {
    try {
      return body();
    } catch (error) {
      const { group, rank } = this.ground;
      throw explain(error, { operation, group, rank, peer: this.peer });
    }
  }
}

/** A format as the addon takes it: type, number of sizes and sizes of each tensor. @example packFormat([{ dtype: float32, shape: [2, 3] }]) // [6, 2, 2, 3] */
export function packFormat(format: readonly TensorFormat[]): number[] {
  const isFormat =
    Array.isArray(format) && format.every((one) => one?.dtype instanceof DType && Array.isArray(one.shape));
  checkGiven('packFormat', isFormat, ['the format', format], 'an array of { dtype, shape }');
  return format.flatMap(({ dtype, shape }) => [dtype.code, shape.length, ...shape]);
}
