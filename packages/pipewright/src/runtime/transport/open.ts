/** @file Which transport a rank uses. */
import type { distributed } from '@pipewright/torch';
import { show } from '../../base/checks.ts';
import { PipelineError } from '../../base/errors.ts';
import { ChannelTransport } from './channels.ts';
import { LaneTransport } from './lanes.ts';
import { ThreadTransport } from './threads.ts';
import type { Transport } from './transport.ts';

/** How messages are to go. */
export interface TransportOptions {
  /** Where the stages compute. */
  readonly device: string;
  /** How their shapes are known: see the option of the runtime. */
  readonly messageShapes?: 'remembered' | 'announced' | undefined;
  /** Whether steps are to be captured. */
  readonly capture?: boolean | undefined;
}

let hasNoted = false;

/** The transport between the ranks of a group; null where one rank is alone. */
export function openTransport(
  group: distributed.ProcessGroup | null,
  { device, messageShapes = 'remembered', capture = false }: TransportOptions,
): Transport | null {
  if (messageShapes !== 'remembered' && messageShapes !== 'announced')
    throw new PipelineError(
      'BAD_OPTION',
      `PipelineRuntime: messageShapes is ${show(messageShapes)}; give 'remembered' or 'announced'`,
    );
  if (group === null) return null;
  if (group.hasLanes(device)) return new LaneTransport(group, device, { announces: messageShapes === 'announced' });
  if (group.backend === 'gloo' && device.startsWith('cuda') && !hasNoted) {
    hasNoted = true;
    process.emitWarning(
      'the stages are on a GPU and the group is over gloo: messages are copied through the memory of the host, which is slow; initProcessGroup() without a backend takes NCCL where it is there',
      { code: 'PIPEWRIGHT_STAGED' },
    );
  }
  if (capture && group.backend === 'thread') return new ThreadTransport(group, device);
  return new ChannelTransport(group);
}
