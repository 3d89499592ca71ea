/** @file What optimizers remember of parameters: how it begins, whether it fits, and how it is taken over. */
import { TorchError } from '../base/errors.ts';
import { Tensor } from '../tensor/tensor.ts';

/**
 * How a piece of state begins: like the parameter, as a number, when first needed, as a number per row or column of a matrix, or like
 * a parameter that is no matrix.
 */
export interface Slot {
  /** PyTorch's name: `exp_avg`. */
  readonly name: string;
  readonly kind: keyof typeof slotKinds;
  readonly begin?: number;
}

export const slotKinds = { like: 0, number: 1, deviceNumber: 2, later: 3, rows: 4, columns: 5, likeVector: 6 } as const;

/** What an optimizer remembers, in PyTorch's layout: state by the parameter's number, options by group. */
export interface OptimizerState {
  readonly state: Readonly<Record<number, Readonly<Record<string, Tensor>>>>;
  readonly paramGroups: readonly (Readonly<Record<string, unknown>> & { readonly params: readonly number[] })[];
}

/** Like the parameter where it has its shape; numbers stay as they are. */
export function adapt(
  record: Readonly<Record<string, Tensor>>,
  { parameter, slots, copy }: { readonly parameter: Tensor; readonly slots: readonly Slot[]; readonly copy: boolean },
): Record<string, Tensor> {
  const made: Record<string, Tensor> = {};
  for (const slot of slots) {
    const value = record[slot.name];
    if (value === undefined) continue;
    const isNumber = slot.kind === 'number' || slot.kind === 'deviceNumber';
    const device = slot.kind === 'number' ? 'cpu' : parameter.device;
    made[slot.name] = value.to({ device, dtype: isNumber ? value.dtype : parameter.dtype, copy }).detach();
  }
  return made;
}

/** The shape of what is remembered of a parameter. */
function shapeOf(slot: Slot | undefined, parameter: Tensor): string {
  const shape = [...parameter.shape];
  if (slot?.kind === 'rows') shape[shape.length - 1] = 1;
  if (slot?.kind === 'columns') shape[shape.length - 2] = 1;
  return shape.join(', ');
}

/** Refuses state that is not of such an optimizer, or of other parameters. */
export function checkState(
  { name: kind, slots }: { readonly name: string; readonly slots: readonly Slot[] },
  params: readonly Tensor[],
  records: readonly (Readonly<Record<string, Tensor>> | undefined)[],
): void {
  const strange = [...new Set(records.flatMap((record) => Object.keys(record ?? {})))].filter(
    (name) => !slots.some((slot) => slot.name === name),
  );
  if (strange.length > 0)
    throw new TorchError(
      'STATE_DICT',
      `${kind}.loadStateDict: the state has ${strange.join(', ')}, which ${kind} does not remember; load it into the kind of optimizer that saved it`,
    );
  const misfits = records.flatMap((record, i) =>
    misfitsOf(slots, params[i]!, record ?? {}).map((misfit) => `parameter ${i}: ${misfit}`),
  );
  if (misfits.length > 0)
    throw new TorchError('STATE_DICT', `${kind}.loadStateDict: the state does not fit\n  ${misfits.join('\n  ')}`);
}

/** What of a record is not shaped as it should be for a parameter, in words. */
export function misfitsOf(
  slots: readonly Slot[],
  parameter: Tensor,
  record: Readonly<Record<string, Tensor>>,
): string[] {
  return Object.entries(record).flatMap(([name, value]) => {
    const shape = shapeOf(
      slots.find((slot) => slot.name === name),
      parameter,
    );
    if (value instanceof Tensor && (value.dim() === 0 || value.shape.join(', ') === shape)) return [];
    const is = value instanceof Tensor ? `[${value.shape.join(', ')}]` : typeof value;
    return [`${name} is ${is} and must have the shape [${shape}]`];
  });
}
