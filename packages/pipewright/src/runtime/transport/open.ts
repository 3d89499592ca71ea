/** @file Which transport a rank uses. */
import type { distributed } from '@pipewright/torch';
import { ChannelTransport } from './channels.ts';
import type { Transport } from './transport.ts';

/** The transport between the ranks of a group; null where one rank is alone. */
export function openTransport(group: distributed.ProcessGroup | null): Transport | null {
  return group === null ? null : new ChannelTransport(group);
}
