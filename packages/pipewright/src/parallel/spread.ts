/** @file Values of one rank, given to all. */
import type { distributed, Tensor } from '@pipewright/torch';

/** Gives all ranks of a group the tensors of the first one. */
export function spread(tensors: Iterable<Tensor>, group: distributed.ProcessGroup): void {
  for (const tensor of new Set(tensors)) {
    if (tensor.numel() === 0) continue;
    const whole = tensor.detach().contiguous();
    group.broadcast(whole, 0);
    tensor.copy_(whole);
  }
}
