/** @file Copies of a rank's state at the beginning of a step: of this rank, and of others for which it keeps them. */
import { Tensor, tensor, unscoped } from '@pipewright/torch';

/** A part of a state: tensors, and a description with everything else. */
export interface Part {
  readonly bytes: Uint8Array;
  readonly tensors: readonly Tensor[];
}

/** The state of a rank at the beginning of a step. */
export interface Snapshot {
  readonly step: number;
  /** The part that is the same on all replicas of the rank. */
  readonly shared: Part;
  /** The part that only this rank has. */
  readonly own: Part;
}

/** The copy that another rank keeps; without `shared` if a replica has that part. */
export interface Copy {
  readonly step: number;
  readonly shared: Part | null;
  readonly own: Part;
}

/** A part from its description and tensors. */
export function partOf(bytes: Uint8Array, tensors: readonly Tensor[]): Part {
  return { bytes, tensors };
}

/** A part as tensors that can be sent. */
export function toTensors({ bytes, tensors }: Part): Tensor[] {
  return [unscoped(() => tensor(new Uint8Array(bytes), { dtype: 'uint8' })), ...tensors];
}

/** The reverse of `toTensors`. */
export function fromTensors([bytes, ...tensors]: readonly (Tensor | null)[]): Part {
  const description = Uint8Array.from(Buffer.from(bytes!.toTypedArray() as Uint8Array));
  return { bytes: description, tensors: tensors as Tensor[] };
}

/** The newest snapshots of one rank: of two steps, because ranks may be one apart. */
export class Newest<One extends Copy> {
  private list: One[] = [];

  get steps(): number[] {
    return this.list.map(({ step }) => step);
  }

  at(step: number): One | undefined {
    return this.list.find((one) => one.step === step);
  }

  /** Adds one; the older of two others goes. */
  add(one: One): void {
    const rest = this.list.filter(({ step }) => step !== one.step).slice(-1);
    for (const old of this.list) if (!rest.includes(old) && old !== one) release(old);
    this.list = [...rest, one];
  }

  /** Keeps only the snapshot of one step. */
  only(step: number): void {
    for (const one of this.list) if (one.step !== step) release(one);
    this.list = this.list.filter((one) => one.step === step);
  }

  dispose(): void {
    for (const one of this.list) release(one);
    this.list = [];
  }
}

function release({ shared, own }: Copy): void {
  for (const part of [shared, own]) for (const one of part?.tensors ?? []) one.dispose();
}
