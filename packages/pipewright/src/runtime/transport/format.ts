/** @file What a message looks like without its values: enough to receive it, and to notice that another one comes. */
import { distributed, type Tensor } from '@pipewright/torch';
import { describeTensor } from '../../base/describe.ts';
import type { Payload } from './transport.ts';
import { hasValues } from './values.ts';

/** A message without its values, as it travels ahead of them. */
export interface MessageFormat {
  /** Type, number of sizes and sizes of each tensor; null where there is none. */
  readonly tensors: readonly (readonly number[] | null)[];
  readonly header?: distributed.Json | undefined;
  /** The header is another one in every step and always travels. */
  readonly varies: boolean;
  /** A tensor is not on the device of the lanes: the message goes over the channel, whole. */
  readonly apart: boolean;
}

/** The format of a payload. */
export function formatOf({ tensors, header }: Payload, carries: (tensor: Tensor) => boolean): MessageFormat {
  return {
    tensors: tensors.map((tensor) => (tensor === null ? null : distributed.packFormat([tensor]))),
    ...(header === undefined ? {} : { header }), // it travels as JSON
    varies: hasValues(header),
    apart: tensors.some((tensor) => tensor !== null && !carries(tensor)),
  };
}

/** What differs between a payload and the format that its receiver knows; null where nothing does. */
export function difference(format: MessageFormat, { tensors, header }: Payload): string | null {
  if (tensors.length !== format.tensors.length) return `${tensors.length} tensors, not ${format.tensors.length}`;
  for (const [i, known] of format.tensors.entries()) {
    const tensor = tensors[i] ?? null;
    if (tensor === null && known === null) continue;
    if (tensor === null || known === null) return `tensor ${i} is ${tensor === null ? 'missing' : 'there'}`;
    const now = distributed.packFormat([tensor]);
    if (now.length !== known.length || now.some((value, k) => value !== known[k]))
      return `tensor ${i} is ${describeTensor(tensor)}, was of shape [${known.slice(2).join(', ')}]`;
  }
  if (!format.varies && format.header !== header && JSON.stringify(format.header) !== JSON.stringify(header))
    return 'the values have another structure';
  return null;
}
