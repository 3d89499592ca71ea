/** @file Gradients of many parameters as few tensors, so that they are reduced in few operations. */
import { cat, ones, Tensor, tensor, unscoped, zeros } from '@pipewright/torch';

/** Parameters of one type and device whose gradients travel together. */
export interface Bucket {
  readonly parameters: readonly Tensor[];
  /** Elements of all of them. */
  readonly elements: number;
}

/** Divides parameters, in order, into buckets of about `bytes` bytes; one type and device each. */
export function bucketsOf(parameters: readonly Tensor[], bytes: number): Bucket[] {
  const open = new Map<string, Tensor[]>();
  const found: Bucket[] = [];
  const close = (key: string): void => {
    const list = open.get(key) ?? [];
    if (list.length > 0)
      found.push({ parameters: list, elements: list.reduce((sum, parameter) => sum + parameter.numel(), 0) });
    open.delete(key);
  };
  for (const parameter of parameters) {
    const key = `${parameter.dtype.name} ${String(parameter.device)}`;
    const list = open.get(key) ?? [];
    open.set(key, [...list, parameter]);
    if ([...list, parameter].reduce((sum, { nbytes }) => sum + nbytes, 0) >= bytes) close(key);
  }
  for (const key of [...open.keys()]) close(key);
  return found;
}

/** The gradients of a bucket as they are reduced. */
export interface PackedBucket {
  readonly bucket: Bucket;
  /** All gradients, zeros where there are none, and behind them a number for each parameter: 1 where it has a gradient. */
  readonly packed: Tensor;
  /** Whether this rank has a gradient for each parameter: then it does not matter which of them other replicas have. */
  readonly isWhole: boolean;
}

/** For each gradient of a rank a number: 1 where it is there. Summed over ranks, they say whether any of them has it. */
export function presence(
  grads: readonly (Tensor | null)[],
  options: { readonly dtype: Tensor['dtype']; readonly device: Tensor['device'] },
): { readonly present: Tensor; readonly isWhole: boolean } {
  const isWhole = !grads.includes(null);
  // On a GPU, what is copied from an array makes the host wait; ones are made there.
  const present = isWhole
    ? ones([grads.length], options)
    : tensor(
        grads.map((grad) => (grad === null ? 0 : 1)),
        options,
      );
  return { present, isWhole };
}

/** Which gradients some rank has, where the numbers of all ranks were summed; asks, and on a GPU waits, only where it has to. */
export function arePresent(present: Tensor, isWhole: boolean): (i: number) => boolean {
  if (isWhole) return () => true;
  const sums = present.toArray() as number[];
  return (i) => sums[i] !== 0;
}

/** The gradients of a bucket in one tensor. */
export function pack(bucket: Bucket): PackedBucket {
  const { parameters } = bucket;
  const [first] = parameters as readonly [Tensor];
  const { dtype, device } = first;
  const grads = parameters.map((parameter) => parameter.grad);
  const parts = grads.map((grad, i) =>
    grad === null ? zeros([parameters[i]!.numel()], { dtype, device }) : grad.reshape([-1]),
  );
  const { present, isWhole } = presence(grads, { dtype, device });
  return { bucket, packed: unscoped(() => cat([...parts, present])), isWhole };
}

/** Gives the parameters of a bucket what was packed and summed; null where no replica has a gradient. */
export function unpack({ bucket: { parameters, elements }, packed, isWhole }: PackedBucket): void {
  const isThere = arePresent(packed.narrow(0, elements, parameters.length), isWhole);
  let at = 0;
  parameters.forEach((parameter, i) => {
    const size = parameter.numel();
    parameter.grad = isThere(i) ? packed.narrow(0, at, size).view([...parameter.shape]) : null;
    at += size;
  });
}
