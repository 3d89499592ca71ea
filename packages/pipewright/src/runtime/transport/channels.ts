/**
 * @file Messages over the channels of a group: between threads tensors change hands without a copy, between processes shapes
 * and dtypes travel with them. Channels receive ahead by themselves and find messages by their tags, so a posted receive is the
 * promise to take one.
 */
import type { distributed } from '@pipewright/torch';
import { callTag, differentCalls, otherCalls, type StepCall } from './call.ts';
import type { Envelope, Payload, PostedReceive, Transport } from './transport.ts';

/** Moves payloads over channels. */
export class ChannelTransport implements Transport {
  readonly way: string = 'over channels';
  readonly carriesRefusals = true;
  protected readonly group: distributed.ProcessGroup;
  private readonly channels: distributed.Channel[] = [];
  private call: StepCall = { number: 0, kind: 0 };
  /** Added to every tag, so that a message is taken by the call it was sent in, and by no other. */
  private added = 0;

  constructor(group: distributed.ProcessGroup) {
    this.group = group;
  }

  beginStep(call: StepCall): void {
    this.call = call;
    this.added = callTag(call);
  }

  post({ peer, tag }: Envelope): PostedReceive {
    return new ChannelReceive(this, this.channelTo(peer), tag);
  }

  send({ peer, tag }: Envelope, payload: Payload): void {
    const channel = this.channelTo(peer);
    const { tensors, header } = payload;
    const [only] = tensors;
    const own = tag + this.added;
    if (header === undefined && tensors.length === 1 && only !== null && only !== undefined) channel.send(own, only);
    else channel.sendMessage(own, { tensors, header });
  }

  /** The message of this call. */
  take(channel: distributed.Channel, tag: number): Payload {
    return channel.recvMessage(tag + this.added, { whileWaiting: () => this.checkCall(channel, tag) });
  }

  /**
   * Refuses to wait where the peer has sent this message in a call of another kind: messages of a peer come in their order, so
   * that the one of this call will never come.
   */
  private checkCall(channel: distributed.Channel, tag: number): void {
    const other = otherCalls(this.call).find((call) => channel.has(tag + callTag(call)));
    if (other === undefined || channel.has(tag + this.added)) return;
    const { rank } = this.group;
    throw differentCalls({ rank, kind: this.call.kind }, { rank: channel.peer, kind: other.kind });
  }

  private channelTo(peer: number): distributed.Channel {
    return (this.channels[peer] ??= this.group.channel(peer));
  }
}

class ChannelReceive implements PostedReceive {
  private readonly transport: ChannelTransport;
  private readonly channel: distributed.Channel;
  private readonly tag: number;

  constructor(transport: ChannelTransport, channel: distributed.Channel, tag: number) {
    this.transport = transport;
    this.channel = channel;
    this.tag = tag;
  }

  wait(): Payload {
    return this.transport.take(this.channel, this.tag);
  }
}
