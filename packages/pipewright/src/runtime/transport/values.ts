/**
 * @file What travels between stages. Forward: the values that a stage takes from another, as one message; shapes and
 * dtypes travel with the tensors, the rest in a header. Backward: one gradient per tensor that needs one, null where
 * there is none. The usual case, one tensor that needs a gradient, goes without a header.
 */
import { type distributed, isGradEnabled, Tensor } from '@pipewright/torch';
import { PipelineError } from '../../base/errors.ts';
import { flatten, type TreeSpec, unflatten } from '../../base/tree.ts';
import type { Payload } from './transport.ts';

/** The header of a forward message that is not one tensor alone. */
interface Header {
  readonly spec: TreeSpec;
  /** One character per leaf: `g` a tensor that needs a gradient, `t` a tensor that does not, `s` another value. */
  readonly leaves: string;
  /** The other values, in order. */
  readonly values: readonly distributed.Json[];
  /** The weight of the microbatch in the loss, where it is not that of all others. */
  readonly weight?: number | undefined;
}

/** Values as they arrive: fresh leaves of the autograd graph. */
export interface Arrival {
  readonly values: unknown[];
  /** The tensors that need gradients, in order. */
  readonly leaves: Tensor[];
}

/** The message that carries values to another stage, and the weight of their microbatch where its receiver cannot know it. */
export function packValues(values: readonly unknown[], weight?: number): Payload {
  const [only] = values;
  if (weight === undefined && values.length === 1 && only instanceof Tensor && only.requiresGrad === isGradEnabled())
    return { tensors: [only] };
  const { leaves, spec } = flatten(values);
  const tensors: Tensor[] = [];
  const others: distributed.Json[] = [];
  let characters = '';
  for (const leaf of leaves) {
    if (leaf instanceof Tensor) {
      tensors.push(leaf);
      characters += leaf.requiresGrad ? 'g' : 't';
    } else {
      others.push(leaf as distributed.Json);
      characters += 's';
    }
  }
  const header: Header = { spec, leaves: characters, values: others, ...(weight === undefined ? {} : { weight }) };
  return { tensors, header: header as unknown as distributed.Json };
}

/** Whether a header has values that may be others in every step, and not only the structure of the message. */
export function hasValues(header: distributed.Json | undefined): boolean {
  return ((header as unknown as Partial<Header> | undefined)?.values ?? []).length > 0;
}

/** The weight of the microbatch that a message says; undefined where it says none. */
export function weightIn({ header }: Payload): number | undefined {
  return header === undefined ? undefined : (header as unknown as Header).weight;
}

/** The values of a message that `packValues` made. */
export function unpackValues({ tensors, header }: Payload): Arrival {
  if (header === undefined) {
    const tensor = tensors[0]!;
    return isGradEnabled() ? { values: [tensor.requiresGrad_()], leaves: [tensor] } : { values: [tensor], leaves: [] };
  }
  const { spec, leaves: characters, values: others } = header as unknown as Header;
  const leaves: Tensor[] = [];
  let nextTensor = 0;
  let nextOther = 0;
  const all = Array.from(characters, (character) => {
    if (character === 's') return others[nextOther++];
    const tensor = tensors[nextTensor++]!;
    if (character === 'g') leaves.push(tensor.requiresGrad_());
    return tensor;
  });
  return { values: unflatten(spec, all) as unknown[], leaves };
}

/** Hands values over to a stage of the same rank: the same memory, fresh leaves. */
export function handOver(values: readonly unknown[]): Arrival {
  const leaves: Tensor[] = [];
  const fresh = (tensor: Tensor): Tensor => {
    const detached = tensor.detach();
    if (tensor.requiresGrad) leaves.push(detached.requiresGrad_());
    return detached;
  };
  const [only] = values;
  if (values.length === 1 && only instanceof Tensor) return { values: [fresh(only)], leaves };
  const { leaves: all, spec } = flatten(values);
  return {
    values: unflatten(
      spec,
      all.map((leaf) => (leaf instanceof Tensor ? fresh(leaf) : leaf)),
    ) as unknown[],
    leaves,
  };
}

/** The gradients of a message, of which there must be `count`. */
export function unpackGrads({ tensors }: Payload, count: number, rank: number): readonly (Tensor | null)[] {
  if (tensors.length === count) return tensors;
  throw new PipelineError(
    'GRADIENT_MISMATCH',
    `rank ${rank} sent ${tensors.length} gradients for ${count} tensors; do both ranks run the same model and step?`,
  );
}
