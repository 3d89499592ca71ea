/** @file The names of a module's tensors: parameters, buffers, and constants kept in fields. */
import { nn, Tensor } from '@pipewright/torch';

/** Finds the qualified name of a tensor; one that has several (tied weights) is named by where it is used. */
export class ModuleState {
  private readonly names = new Map<Tensor, string[]>();
  private readonly owned = new Set<Tensor>();
  private readonly places = new Map<string, number>();

  constructor(module: nn.Module) {
    for (const [name, parameter] of module.namedParameters({ removeDuplicate: false })) this.add(parameter, name);
    for (const [name, buffer] of module.namedBuffers({ removeDuplicate: false })) this.add(buffer, name);
    for (const tensor of this.names.keys()) this.owned.add(tensor);
    for (const [path, part] of module.namedModules())
      for (const [field, value] of Object.entries(part)) {
        if (!(value instanceof Tensor) || value instanceof nn.Parameter || value instanceof nn.Buffer) continue;
        if (/^[\w$]+$/.test(field)) this.add(value, path === '' ? field : `${path}.${field}`);
      }
  }

  private add(tensor: Tensor, name: string): void {
    this.places.set(name, this.places.size);
    const known = this.names.get(tensor);
    if (known === undefined) this.names.set(tensor, [name]);
    else known.push(name);
  }

  /** Where a name comes in the module's own order; constants that are no fields come last. */
  placeOf(name: string): number {
    return this.places.get(name) ?? this.places.size;
  }

  /** Whether a tensor is a parameter or buffer of the module. */
  owns(tensor: Tensor): boolean {
    return this.owned.has(tensor);
  }

  /** Whether a tensor has several names. */
  isTied(tensor: Tensor): boolean {
    return (this.names.get(tensor)?.length ?? 0) > 1;
  }

  /** The name of a tensor as the module at `path` would call it, or null for one that is not the module's. */
  nameOf(tensor: Tensor, path: string): string | null {
    const names = this.names.get(tensor);
    if (names === undefined) return null;
    if (names.length === 1) return names[0]!;
    return names.reduce((best, name) => (common(name, path) > common(best, path) ? name : best));
  }

  /** All parameters and buffers, each once, with all their names. */
  tensors(): ReadonlyMap<Tensor, readonly string[]> {
    return new Map([...this.names].filter(([tensor]) => this.owned.has(tensor)));
  }
}

/** Number of leading parts that two qualified names share. */
function common(a: string, b: string): number {
  const [left, right] = [a.split('.'), b.split('.')];
  let count = 0;
  while (count < left.length && count < right.length && left[count] === right[count]) count++;
  return count;
}
