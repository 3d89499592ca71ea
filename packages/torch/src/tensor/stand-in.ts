/** @file A tensor that stands for another one in a message, so that whoever counts memory can tell the message from other holders. */
import { native } from '../addon/addon.ts';
import { Tensor } from './tensor.ts';

/** A tensor with the values of another one, in the same memory, which it keeps. */
export interface StandIn {
  readonly tensor: Tensor;
  /** The same for all tensors of that memory. */
  readonly memory: number;
  readonly bytes: number;
}

/** A stand-in for a tensor: however many hold it, the memory has one holder more. @example channel.send(tag, standIn(x).tensor) */
export function standIn(tensor: Tensor): StandIn {
  const [handle, memory, bytes] = native.standIn(tensor.handle);
  return { tensor: Tensor.adopt(handle), memory, bytes };
}

/** How many hold the memory that a stand-in stands for, autograd included; every stand-in of it is one. @example originalHolders(sent) */
export function originalHolders({ tensor }: StandIn): number {
  return native.originalHolders(tensor.handle);
}
