/**
 * @file Checkpointed modules run twice, once in the forward and once in the backward. What they count and average in buffers
 * (batch norm's running statistics, counters of their own) changes in the first run only; PyTorch changes it in both.
 */
import { nn } from '@pipewright/torch';

/** A buffer and the module that has it. */
interface Held {
  readonly module: nn.Module;
  readonly name: string;
  readonly buffer: nn.Buffer;
}

/** A function that calls a module's forward; from the second call on it works on copies of the buffers that the first has changed. */
export function onceWithStatistics(module: nn.Module): (...inputs: unknown[]) => unknown {
  let changed: readonly Held[] | null = null;
  const forward = (inputs: unknown[]): unknown => (module.forward as (...inputs: unknown[]) => unknown)(...inputs);
  return (...inputs) => {
    if (changed !== null) return changed.length === 0 ? forward(inputs) : onCopies(changed, () => forward(inputs));
    const held = buffersOf(module);
    const versions = held.map(({ buffer }) => buffer.version);
    const output = forward(inputs);
    // The operators of batch norm change their statistics without counting it.
    changed = held.filter(
      ({ module: owner, buffer }, i) => buffer.version !== versions[i] || (owner.training && 'runningMean' in owner),
    );
    return output;
  };
}

function buffersOf(module: nn.Module): Held[] {
  return module
    .modules()
    .flatMap((owner) =>
      Object.entries(owner).flatMap(([name, value]) =>
        value instanceof nn.Buffer ? [{ module: owner, name, buffer: value }] : [],
      ),
    );
}

function onCopies(held: readonly Held[], body: () => unknown): unknown {
  for (const { module, name, buffer } of held)
    Reflect.set(module, name, new nn.Buffer(buffer.detach().clone(), { persistent: buffer.persistent }));
  try {
    return body();
  } finally {
    for (const { module, name, buffer } of held) Reflect.set(module, name, buffer);
  }
}
