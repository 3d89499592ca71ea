/** @file Where the memory of tensors lies. */
import type { Tensor } from '@pipewright/torch';

/** Address of the first element; 0 where a tensor has no elements, or keeps them in several tensors, as sparse ones do. */
export function addressOf(tensor: Tensor): bigint {
  return tensor.layout === 'strided' && tensor.numel() > 0 ? tensor.dataPtr() : 0n;
}

/** Address where the storage of a tensor begins, for views too; 0 as in `addressOf`. */
export function storageOf(tensor: Tensor): bigint {
  const address = addressOf(tensor);
  if (address === 0n) return address;
  return address - BigInt((tensor.storageOffset() * tensor.nbytes) / tensor.numel());
}
