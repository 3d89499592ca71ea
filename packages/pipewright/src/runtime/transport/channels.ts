/**
 * @file Messages over the channels of a group: between threads tensors change hands without a copy, between processes shapes
 * and dtypes travel with them. Channels receive ahead by themselves and find messages by their tags, so a posted receive is the
 * promise to take one.
 */
import type { distributed } from '@pipewright/torch';
import type { Envelope, Payload, PostedReceive, Transport } from './transport.ts';

/** Moves payloads over channels. */
export class ChannelTransport implements Transport {
  private readonly group: distributed.ProcessGroup;
  private readonly channels: distributed.Channel[] = [];

  constructor(group: distributed.ProcessGroup) {
    this.group = group;
  }

  post({ peer, tag }: Envelope): PostedReceive {
    return new ChannelReceive(this.channelTo(peer), tag);
  }

  send({ peer, tag }: Envelope, payload: Payload): void {
    const channel = this.channelTo(peer);
    const { tensors, header } = payload;
    const [only] = tensors;
    if (header === undefined && tensors.length === 1 && only !== null && only !== undefined) channel.send(tag, only);
    else channel.sendMessage(tag, { tensors, header });
  }

  private channelTo(peer: number): distributed.Channel {
    return (this.channels[peer] ??= this.group.channel(peer));
  }
}

class ChannelReceive implements PostedReceive {
  private readonly channel: distributed.Channel;
  private readonly tag: number;

  constructor(channel: distributed.Channel, tag: number) {
    this.channel = channel;
    this.tag = tag;
  }

  wait(): Payload {
    return this.channel.recvMessage(this.tag);
  }
}
