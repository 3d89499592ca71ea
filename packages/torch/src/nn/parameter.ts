/** @file Tensors that belong to a module: parameters, which learn, and buffers, which are part of its state. */

import { native } from '../addon/addon.ts';
import { checkGiven } from '../base/checks.ts';
import { checkOptions } from '../base/errors.ts';
import { empty } from '../generated/functions.ts';
import { checkTensors } from '../tensor/check-tensors.ts';
import { getDefaultDtype } from '../tensor/dtype.ts';
import { disposeOwned, leaveCollector, own, unscoped } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import type { FactoryOptions } from './factory.ts';

/** Gives a tensor of a module another handle; its memory is freed by `dispose` or the collector, never by a scope. */
function hold(tensor: Tensor, handle: number): void {
  disposeOwned(tensor);
  tensor.h = handle;
  unscoped(() => own(tensor));
}

/**
 * A tensor that a module learns. A field of a module that holds one is registered by that alone. It shares the memory
 * of `data` and outlives scopes.
 *
 * @example class Scale extends Module { gain = new Parameter(ones([3])); forward(x: Tensor) { return x.mul(this.gain); } }
 */
export class Parameter extends Tensor {
  declare readonly role: 'parameter';

  constructor(data: Tensor, options?: { requiresGrad?: boolean | undefined }) {
    checkOptions('Parameter', options, ['requiresGrad']);
    checkTensors('Parameter', { data });
    super(native.makeParameter(data.handle, options?.requiresGrad ?? true));
    unscoped(() => own(this));
  }

  /** Makes this parameter be another tensor, of any device: everything that holds the parameter sees the change. */
  become(data: Tensor): this {
    checkTensors('Parameter.become', { data });
    hold(this, native.makeParameter(data.handle, this.requiresGrad));
    return this;
  }

  /**
   * The two parameters exchange their tensors, gradients included: whoever holds one of them now sees what the other was.
   *
   * @example weight.swap(other); weight.swap(other) // as before
   */
  swap(other: Parameter): void {
    checkGiven('Parameter.swap', other instanceof Parameter, ['the argument', other], 'a parameter');
    const [mine, theirs] = [this.handle, other.handle];
    if (mine === theirs) return;
    leaveCollector(this);
    leaveCollector(other);
    this.h = theirs;
    other.h = mine;
    for (const each of [this, other]) unscoped(() => own(each));
  }
}

/**
 * A tensor that is part of a module's state but is not learned. With `persistent: false` it is left out of `stateDict`.
 *
 * @example class Mean extends Module { sum = new Buffer(zeros([3])); }
 */
export class Buffer extends Tensor {
  declare readonly role: 'buffer';
  readonly persistent: boolean;

  constructor(data: Tensor, options?: { persistent?: boolean | undefined }) {
    checkOptions('Buffer', options, ['persistent']);
    checkTensors('Buffer', { data });
    super(native.duplicate(data.handle));
    unscoped(() => own(this));
    this.persistent = options?.persistent ?? true;
  }

  /** Makes this buffer be another tensor, of any device: everything that holds the buffer sees the change. */
  become(data: Tensor): this {
    hold(this, native.duplicate(data.handle));
    return this;
  }
}

/** A parameter with memory but no values yet: what `nn.init` fills. */
export function emptyParameter(shape: readonly number[], options: FactoryOptions): Parameter {
  return take(emptyTensor(shape, options), (data) => new Parameter(data));
}

/** A tensor with memory but no values yet, of the default type unless told otherwise. */
export function emptyTensor(shape: readonly number[], { dtype, device }: FactoryOptions): Tensor {
  return empty(shape, { dtype: dtype ?? getDefaultDtype(), device: device ?? null });
}

/** Makes something of a tensor and frees the tensor's own handle. */
export function take<T>(data: Tensor, make: (data: Tensor) => T): T {
  try {
    return make(data);
  } finally {
    data.dispose();
  }
}
