/** @file Gradients of many parameters as few tensors, so that they are reduced in few operations. */
import { cat, Tensor, unscoped, zeros } from '@pipewright/torch';

/** Parameters of one type and device whose gradients travel together. */
export interface Bucket {
  readonly parameters: readonly Tensor[];
  /** Elements of all of them. */
  readonly elements: number;
}

/** Divides parameters into buckets of about so many bytes, in order; one type and device each. */
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

/**
 * The gradients of a bucket in one tensor, zeros where there are none, and behind them a number for each parameter: 1 where
 * it has a gradient. Summed over replicas, it says whether any of them has one.
 */
export function pack({ parameters }: Bucket): Tensor {
  const [first] = parameters as readonly [Tensor];
  const { dtype, device } = first;
  const grads = parameters.map((parameter) => parameter.grad);
  const parts = grads.map((grad, i) =>
    grad instanceof Tensor ? grad.reshape([-1]) : zeros([parameters[i]!.numel()], { dtype, device }),
  );
  const present = zeros([parameters.length], { dtype, device });
  grads.forEach((grad, i) => {
    if (grad !== null) present.at(i).fill_(1);
  });
  return unscoped(() => cat([...parts, present]));
}

/** Gives the parameters of a bucket what was packed; null where no replica has a gradient. */
export function unpack({ parameters, elements }: Bucket, packed: Tensor): void {
  const present = packed.at(`${elements}:`).toArray() as number[];
  let at = 0;
  parameters.forEach((parameter, i) => {
    const size = parameter.numel();
    parameter.grad = present[i] === 0 ? null : packed.at(`${at}:${at + size}`).view([...parameter.shape]);
    at += size;
  });
}
