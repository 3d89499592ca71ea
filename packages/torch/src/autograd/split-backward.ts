/** @file The backward of a stage in two halves: first what the stage before waits for, later the parameters. */

import { native } from '../addon/addon.ts';
import { checkObject } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { Tensor } from '../tensor/tensor.ts';
import { gradientsOf, isTarget, listOf } from './backward.ts';
import { collectCallbacks } from './callbacks.ts';
import type { GradientTarget } from './gradient-edge.ts';

/** What the input half takes. */
export interface InputBackwardOptions {
  /** Results of the stage, or its loss. Those that require no gradient are skipped. */
  outputs: GradientTarget | readonly GradientTarget[];
  /** Their gradients, null for a scalar. */
  gradOutputs?: readonly (Tensor | null)[] | undefined;
  /** What the stage was given; null and tensors without gradients are allowed, and get null. */
  inputs?: readonly (GradientTarget | null)[] | undefined;
}

/** What the input half gives. */
export interface InputBackwardResult {
  /** One entry per input: its gradient, or null where there is none. Nothing is accumulated into the inputs. */
  readonly inputGrads: (Tensor | null)[];
  /** The other half. */
  readonly weights: WeightBackward;
}

/** The half of a backward that computes the gradients of the parameters; holds what it needs until run or dropped. */
export class WeightBackward {
  private h: number;

  constructor(handle: number) {
    this.h = handle;
    net.register(this, handle, this);
  }

  /** Whether it was neither run nor dropped. */
  get isPending(): boolean {
    return this.h !== 0;
  }

  /** Accumulates the gradients of the parameters; once. */
  run(): void {
    if (this.h === 0)
      throw new TorchError(
        'STALE_HANDLE',
        'WeightBackward.run: this half was run or dropped already; call inputBackward for each backward',
      );
    const handle = this.forget();
    native.weightBackward(handle);
    collectCallbacks();
  }

  /** Frees what the half holds without computing it; dropping twice does nothing. */
  drop(): void {
    if (this.h === 0) return;
    native.dropWeightBackward(this.forget());
    collectCallbacks();
  }

  [Symbol.dispose](): void {
    this.drop();
  }

  private forget(): number {
    const handle = this.h;
    this.h = 0;
    net.unregister(this);
    return handle;
  }
}

const net = new FinalizationRegistry<number>((handle) => native.dropWeightBackward(handle)); // a net only: run or drop each half

/**
 * Computes the gradients of the inputs only. `weights.run()` later accumulates those of the parameters; both halves
 * together give exactly what `backward` gives, with nothing computed twice. The graph is used up.
 *
 * @example const { inputGrads, weights } = inputBackward({ outputs: [y], gradOutputs: [dy], inputs: [x] }); send(inputGrads); weights.run()
 */
export function inputBackward(options: InputBackwardOptions): InputBackwardResult {
  checkObject('inputBackward', 'the argument', options, '{ outputs, gradOutputs, inputs }');
  checkOptions('inputBackward', options, ['outputs', 'gradOutputs', 'inputs']);
  const outputs = listOf('inputBackward', 'outputs', options.outputs);
  for (const name of ['gradOutputs', 'inputs'] as const)
    if (options[name] !== undefined && !Array.isArray(options[name]))
      throw new TorchError('BAD_ARGUMENT', `inputBackward: ${name} is a ${typeof options[name]}; give an array`);
  if (options.gradOutputs !== undefined && options.gradOutputs.length !== outputs.length) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `inputBackward: ${options.gradOutputs.length} gradients for ${outputs.length} outputs; give one for each, null for a scalar`,
    );
  }
  const roots = outputs.every((output) => output.requiresGrad)
    ? outputs
    : outputs.filter((output) => output.requiresGrad);
  const given =
    roots === outputs ? options.gradOutputs : options.gradOutputs?.filter((_, i) => outputs[i]?.requiresGrad);
  const gradients = gradientsOf('inputBackward', roots, given);
  const inputs = (options.inputs ?? []).map((input, i) => {
    if (input !== null && !isTarget(input))
      throw new TorchError(
        'BAD_ARGUMENT',
        `inputBackward: inputs[${i}] is not a tensor but a ${typeof input}; give null for it`,
      );
    return input === null ? null : input.handle;
  });
  const [found, handle] = native.inputBackward(
    roots.map((root) => root.handle),
    gradients,
    inputs,
  );
  collectCallbacks();
  return {
    inputGrads: found.map((item) => (item === null ? null : Tensor.adopt(item))),
    weights: new WeightBackward(handle),
  };
}
