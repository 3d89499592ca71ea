/**
 * @file Ordered, tagged, typed messages to and from one peer. Between threads tensors change hands with no copy; over
 * gloo they are sent ahead and received ahead, shapes and dtypes travelling with them.
 */

import { checkOptions, TorchError } from '../../base/errors.ts';
import { type DType, type DTypeName, toDType } from '../../tensor/dtype.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { DistributedError, explain, type OperationDetails } from '../base/errors.ts';
import { type Json, toJson } from '../base/json.ts';
import { dist, type NativeMessage } from '../base/native.ts';
import { checkTimeout } from '../base/store.ts';
import { type AsyncWaitOptions, cancellable, type WaitOptions } from '../base/work.ts';

/** A message: any number of tensors, and a small JSON value. */
export interface Message {
  readonly tag: number;
  readonly tensors: readonly (Tensor | null)[];
  readonly header: Json | undefined;
}

/** What to send. */
export interface Outgoing {
  readonly tensors?: readonly (Tensor | null)[] | undefined;
  readonly header?: Json | undefined;
}

/** Options of a send. */
export interface SendOptions {
  /** Dispose of the tensors here: the receiver is their only owner. */
  readonly give?: boolean | undefined;
}

/** What a received tensor must be. */
export interface RecvOptions extends WaitOptions {
  readonly dtype?: DType | DTypeName | undefined;
  readonly shape?: readonly number[] | undefined;
}

/** What a wait for a message does. */
export interface MessageOptions extends WaitOptions {
  /** Called again and again while the message has not come, the last time before the wait is given up; what it throws ends the wait. */
  readonly whileWaiting?: (() => void) | undefined;
}

/** One rank's end of the channels of a group. */
export interface ChannelEnd {
  readonly group: string;
  readonly rank: number;
  readonly timeoutMs: number;
  /** The addon's endpoint; throws when the group is closed. */
  endpoint(): number;
}

/** After so long a wait is looked at by `whileWaiting` for the first time, and then after so long again. */
const FIRST_TURN_MS = 100;
const LATER_TURNS_MS = 500;

const tensorOptions = ['timeoutMs', 'dtype', 'shape', 'signal'];
const messageOptions = ['timeoutMs', 'whileWaiting'];

const TENSORS = 0;
const OBJECTS = 2;
/** Matches every tag. */
export const ANY_TAG = -1;

/**
 * Messages to and from one peer, in order. A message is found by its tag: the first that fits is taken. A tensor sent to
 * another thread is the same memory there, without its gradients; do not change it afterwards.
 *
 * @example const next = group.channel(1); next.send(7, y); const grad = next.recv(7)
 */
export class Channel {
  readonly peer: number;
  private readonly end: ChannelEnd;

  constructor(end: ChannelEnd, peer: number) {
    this.end = end;
    this.peer = peer;
  }

  /** Sends one tensor. Never blocks, unless the group was made with a bound. */
  send(tag: number, tensor: Tensor, options?: SendOptions): void {
    if (tag !== tag >>> 0) checkTag('Channel.send', tag);
    if (!(tensor instanceof Tensor)) throw notTensor('Channel.send', tensor);
    try {
      dist.endpointSend(this.end.endpoint(), this.peer, TENSORS, tag, tensor.handle, null, this.end.timeoutMs);
    } catch (error) {
      throw explain(error, this.details('Channel.send', tag));
    }
    if (options !== undefined) this.give(options, [tensor]);
  }

  /** Receives one tensor: a fresh leaf, without gradients. */
  recv(tag: number, options?: RecvOptions): Tensor {
    if (tag !== tag >>> 0) checkTag('Channel.recv', tag);
    const timeoutMs = options === undefined ? this.end.timeoutMs : this.limit('Channel.recv', options);
    let got: number | NativeMessage;
    try {
      got = dist.endpointReceive(this.end.endpoint(), this.peer, TENSORS, tag, timeoutMs);
    } catch (error) {
      throw explain(error, this.details('Channel.recv', tag));
    }
    const tensor = typeof got === 'number' ? Tensor.adopt(got) : this.only(unpack(got), tag);
    if (options !== undefined) this.check(tensor, tag, options);
    return tensor;
  }

  /** Resolves to one tensor; the event loop runs meanwhile. */
  async recvAsync(tag: number, options?: RecvOptions & AsyncWaitOptions): Promise<Tensor> {
    checkTag('Channel.recvAsync', tag);
    const tensor = this.only(await this.receiveAsync(tag, TENSORS, options), tag);
    if (options !== undefined) this.check(tensor, tag, options);
    return tensor;
  }

  /** Sends tensors (null where there is none) and a small JSON value as one message. */
  sendMessage(tag: number, message: Outgoing, options?: SendOptions): void {
    checkTag('Channel.sendMessage', tag);
    checkOptions('Channel.sendMessage', message, ['tensors', 'header', 'tag']);
    const tensors = message.tensors ?? [];
    if (tensors.length > 65_535)
      throw new TorchError('BAD_ARGUMENT', `Channel.sendMessage: ${tensors.length} tensors; 65,535 are the most`);
    const handles = tensors.map((tensor) => {
      if (tensor === null) return null;
      if (!(tensor instanceof Tensor)) throw notTensor('Channel.sendMessage', tensor);
      return tensor.handle;
    });
    const header = message.header === undefined ? null : toJson('Channel.sendMessage', message.header);
    this.push(tag, TENSORS, { handles, header });
    if (options !== undefined) this.give(options, tensors);
  }

  /** Receives a message with this tag, or with any tag where none is given. */
  recvMessage(tag: number = ANY_TAG, options?: MessageOptions): Message {
    if (tag !== ANY_TAG) checkTag('Channel.recvMessage', tag);
    return this.take(tag, TENSORS, 'Channel.recvMessage', options);
  }

  /** Resolves to a message with this tag, or with any tag where none is given. */
  async recvMessageAsync(tag: number = ANY_TAG, options?: AsyncWaitOptions): Promise<Message> {
    if (tag !== ANY_TAG) checkTag('Channel.recvMessageAsync', tag);
    return this.receiveAsync(tag, TENSORS, options);
  }

  /** Whether a message with this tag (any, where none is given) is here. */
  has(tag: number = ANY_TAG): boolean {
    return dist.endpointHas(this.end.endpoint(), this.peer, TENSORS, tag);
  }

  /** Sends a JSON value; apart from the messages with tensors. */
  sendObject(value: Json, tag = 0): void {
    checkTag('Channel.sendObject', tag);
    this.push(tag, OBJECTS, { handles: null, header: toJson('Channel.sendObject', value) });
  }

  /** Receives a JSON value. */
  recvObject<T = Json>(tag = 0, options?: MessageOptions): T {
    checkTag('Channel.recvObject', tag);
    return this.take(tag, OBJECTS, 'Channel.recvObject', options).header as T;
  }

  private push(tag: number, space: number, what: { handles: (number | null)[] | null; header: string | null }): void {
    try {
      dist.endpointSend(this.end.endpoint(), this.peer, space, tag, what.handles, what.header, this.end.timeoutMs);
    } catch (error) {
      throw explain(error, this.details('Channel.send', tag));
    }
  }

  private take(tag: number, space: number, operation: string, options: MessageOptions | undefined): Message {
    const timeoutMs = options === undefined ? this.end.timeoutMs : this.limit(operation, options, messageOptions);
    const whileWaiting = options?.whileWaiting;
    let waited = 0;
    for (let turn = whileWaiting === undefined ? timeoutMs : FIRST_TURN_MS; ; turn = LATER_TURNS_MS) {
      const limit = Math.min(turn, timeoutMs - waited);
      try {
        const got = dist.endpointReceive(this.end.endpoint(), this.peer, space, tag, limit);
        return typeof got === 'number' ? { tag, tensors: [Tensor.adopt(got)], header: undefined } : unpack(got);
      } catch (error) {
        if (whileWaiting === undefined || !isTimeOut(error)) throw explain(error, this.details(operation, tag));
        whileWaiting();
        if (waited + limit >= timeoutMs) throw explain(timeOutAfter(error, waited), this.details(operation, tag));
      }
      waited += limit;
    }
  }

  private async receiveAsync(tag: number, space: number, options: AsyncWaitOptions | undefined): Promise<Message> {
    const timeoutMs = options === undefined ? this.end.timeoutMs : this.limit('Channel.recvAsync', options);
    try {
      const endpoint = this.end.endpoint();
      return unpack(
        await cancellable(options?.signal, (key) =>
          dist.endpointReceiveAsync(endpoint, this.peer, space, tag, timeoutMs, key),
        ),
      );
    } catch (error) {
      throw explain(error, this.details('Channel.recvAsync', tag));
    }
  }

  private give(options: SendOptions, tensors: readonly (Tensor | null)[]): void {
    checkOptions('Channel.send', options, ['give']);
    if (options.give === true) for (const tensor of tensors) tensor?.dispose();
  }

  private only(message: Message, tag: number): Tensor {
    const [first] = message.tensors;
    if (message.tensors.length === 1 && first !== null && first !== undefined) return first;
    throw this.mismatch(tag, `the message has ${message.tensors.length} tensors, not one; use recvMessage`);
  }

  private check(tensor: Tensor, tag: number, options: RecvOptions): void {
    const wrong: string[] = [];
    if (options.dtype !== undefined && tensor.dtype !== toDType(options.dtype)) {
      wrong.push(`dtype ${tensor.dtype.name}, expected ${toDType(options.dtype).name}`);
    }
    const { shape } = tensor;
    if (options.shape !== undefined && shape.join() !== options.shape.join()) {
      wrong.push(`shape [${shape.join(', ')}], expected [${options.shape.join(', ')}]`);
    }
    if (wrong.length === 0) return;
    tensor.dispose();
    throw this.mismatch(tag, `the message has ${wrong.join(' and ')}`);
  }

  private mismatch(tag: number, what: string): DistributedError {
    const details = this.details('Channel.recv', tag);
    const place = `${details.operation} in group '${details.group}': rank ${details.rank} from rank ${this.peer} with tag ${tag}`;
    return new DistributedError('MISMATCH', `${place}: ${what}`, details);
  }

  private limit(operation: string, options: WaitOptions, known: readonly string[] = tensorOptions): number {
    checkOptions(operation, options, known);
    return checkTimeout(operation, options.timeoutMs, this.end.timeoutMs);
  }

  private details(operation: string, tag: number): OperationDetails {
    return { operation, group: this.end.group, rank: this.end.rank, peer: this.peer, tag };
  }
}

function unpack(message: NativeMessage): Message {
  const [tag, header, ...handles] = message;
  return {
    tag,
    tensors: handles.map((handle) => (handle === null ? null : Tensor.adopt(handle))),
    header: header === '' ? undefined : (JSON.parse(header) as Json),
  };
}

function isTimeOut(error: unknown): error is TorchError {
  return error instanceof TorchError && error.code === 'TIMED_OUT';
}

/** The error of a wait in turns, with the time of all of them. */
function timeOutAfter({ code, message }: TorchError, before: number): TorchError {
  return new TorchError(
    code,
    message.replace(/\(waited (\d+) ms\)$/, (_, last: string) => `(waited ${before + Number(last)} ms)`),
  );
}

function notTensor(where: string, value: unknown): TorchError {
  return new TorchError(
    'BAD_ARGUMENT',
    `${where}: expected a tensor of this thread, got ${value === undefined ? 'nothing' : typeof value}`,
  );
}

/** Tags are whole numbers from 0 to 2^53 - 1. */
function checkTag(where: string, tag: number): void {
  if (Number.isSafeInteger(tag) && tag >= 0) return;
  throw new TorchError('BAD_ARGUMENT', `${where}: the tag is ${String(tag)}; give a whole number, at least 0`);
}
