/** @file Copies the values of the first rank of a group to all its ranks. */
import type { distributed, Tensor } from '@pipewright/torch';

/** Overwrites the tensors of all ranks of a group with those of its first rank. */
export function spread(tensors: Iterable<Tensor>, group: distributed.ProcessGroup): void {
  for (const tensor of new Set(tensors)) {
    if (tensor.numel() === 0) continue;
    const whole = tensor.detach().contiguous();
    group.broadcast(whole, 0);
    tensor.copy_(whole);
  }
}
