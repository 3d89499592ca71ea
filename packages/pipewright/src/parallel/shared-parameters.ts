/**
 * @file Frozen parameters of replicas that are threads: with `shareFrozen` all replicas use one copy, which nothing may write to. A
 * parameter that is trainable again gets memory of its own before the next step.
 */
import { commonTensor, type distributed, type nn, noGrad, scope, type Tensor } from '@pipewright/torch';

/** The frozen parameters of a rank that share their memory with other replicas. */
export class SharedParameters {
  private readonly shared = new Set<Tensor>();
  private saved = 0;

  /** Bytes that this rank saves by sharing. */
  get savedBytes(): number {
    return this.saved;
  }

  /** Moves the frozen parameters of a module, which are equal on all ranks of the group, to memory that these share. */
  share(module: nn.Module, group: distributed.ProcessGroup): void {
    if (group.backend !== 'thread') return;
    noGrad(() =>
      scope(() => {
        for (const [name, parameter] of module.namedParameters()) {
          if (parameter.requiresGrad || parameter.device !== 'cpu' || this.shared.has(parameter)) continue;
          const { shape, dtype } = parameter;
          const common = commonTensor(shape, { name: `${group.name} frozen ${name}`, parties: group.size, dtype });
          if (group.rank === 0) common.copy_(parameter);
          group.barrier();
          parameter.setData(common);
          this.shared.add(parameter);
          if (group.rank > 0) this.saved += parameter.nbytes;
        }
      }),
    );
  }

  /** Gives shared parameters that are trainable again memory of their own. */
  separate(): void {
    for (const parameter of this.shared) {
      if (!parameter.requiresGrad) continue;
      this.shared.delete(parameter);
      this.saved = Math.max(0, this.saved - parameter.nbytes);
      noGrad(() => scope(() => parameter.setData(parameter.detach().clone())));
    }
  }
}
