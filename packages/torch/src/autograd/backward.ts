/** @file Gradients: accumulated into leaves by `backward`, returned by `grad`. */
import { native } from '../addon/addon.ts';
import { META_DIMS, META_DTYPE, META_NUMEL, META_REQUIRES_GRAD, META_SIZES } from '../addon/generated/border.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { dtypeOfCode } from '../tensor/dtype.ts';
import { recorder } from '../tensor/recorder.ts';
import { Tensor } from '../tensor/tensor.ts';
import { collectCallbacks } from './callbacks.ts';
import { GradientEdge, type GradientTarget } from './gradient-edge.ts';

/** How `backward` goes through the graph. */
export interface BackwardOptions {
  /** Gradients of the tensors; a tensor of one element needs none. */
  gradTensors?: readonly (Tensor | null)[] | undefined;
  /** Keeps the graph for another backward. Default: `createGraph`. */
  retainGraph?: boolean | undefined;
  /** Records the gradients themselves, for gradients of gradients. */
  createGraph?: boolean | undefined;
  /** Accumulates into these tensors only, instead of all leaves. */
  inputs?: readonly GradientTarget[] | undefined;
}

/** How `grad` goes through the graph. */
export interface GradOptions {
  /** Gradients of the outputs; an output of one element needs none. */
  gradOutputs?: readonly (Tensor | null)[] | undefined;
  /** Keeps the graph for another backward. Default: `createGraph`. */
  retainGraph?: boolean | undefined;
  /** Records the gradients themselves, for gradients of gradients. */
  createGraph?: boolean | undefined;
  /** Gives null for inputs that the outputs do not depend on, instead of an error. */
  allowUnused?: boolean | undefined;
}

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** Adds the gradient of this tensor to every leaf it was computed from. @example loss.backward() */
    backward(gradient?: Tensor | null, options?: Omit<BackwardOptions, 'gradTensors'>): void;
  }
}

/**
 * Adds the gradients of the tensors to every leaf they were computed from.
 *
 * @example backward([lossA, lossB], { retainGraph: true })
 */
export function backward(tensors: GradientTarget | readonly GradientTarget[], options?: BackwardOptions): void {
  checkOptions('backward', options, ['gradTensors', 'retainGraph', 'createGraph', 'inputs']);
  const roots = listOf('backward', 'tensors', tensors);
  forbidWhileRecording('backward()', roots);
  const gradients = gradientsOf('backward', roots, options?.gradTensors);
  const inputs = options?.inputs === undefined ? null : listOf('backward', 'inputs', options.inputs);
  inputs?.forEach((input, i) => {
    if (!input.requiresGrad)
      throw new TorchError(
        'NO_GRAD',
        `backward: inputs[${i}] does not require a gradient; set requiresGrad, or leave it out`,
      );
  });
  native.backward(
    handles(roots),
    gradients,
    flag('backward', 'retainGraph', options?.retainGraph),
    options?.createGraph === true,
    inputs && handles(inputs),
  );
  collectCallbacks();
}

/**
 * The gradients of the outputs with respect to the inputs, without touching `grad` of any tensor.
 *
 * @example const [dx] = grad([y.sum()], [x], { createGraph: true })
 */
export function grad(
  outputs: GradientTarget | readonly GradientTarget[],
  inputs: GradientTarget | readonly GradientTarget[],
  options: GradOptions & { allowUnused: true },
): (Tensor | null)[];
export function grad(
  outputs: GradientTarget | readonly GradientTarget[],
  inputs: GradientTarget | readonly GradientTarget[],
  options?: GradOptions,
): Tensor[];
export function grad(
  outputs: GradientTarget | readonly GradientTarget[],
  inputs: GradientTarget | readonly GradientTarget[],
  options?: GradOptions,
): (Tensor | null)[] {
  checkOptions('grad', options, ['gradOutputs', 'retainGraph', 'createGraph', 'allowUnused']);
  const roots = listOf('grad', 'outputs', outputs);
  forbidWhileRecording('grad()', roots);
  const targets = listOf('grad', 'inputs', inputs);
  const gradients = gradientsOf('grad', roots, options?.gradOutputs);
  targets.forEach((input, i) => {
    if (!input.requiresGrad)
      throw new TorchError(
        'NO_GRAD',
        `grad: inputs[${i}] does not require a gradient; set requiresGrad before computing the outputs`,
      );
  });
  const retain = flag('grad', 'retainGraph', options?.retainGraph);
  const found = native.gradOf(handles(roots), handles(targets), gradients, retain, options?.createGraph === true, true);
  collectCallbacks();
  const result = found.map((handle) => (handle === null ? null : Tensor.adopt(handle)));
  const missing = result.indexOf(null);
  if (missing >= 0 && options?.allowUnused !== true) {
    for (const item of result) item?.dispose();
    throw new TorchError(
      'UNUSED',
      `grad: the outputs do not depend on inputs[${missing}]; leave it out, or give { allowUnused: true } to get null for it`,
    );
  }
  return result;
}

Tensor.prototype.backward = function (
  this: Tensor,
  gradient?: Tensor | null,
  options?: Omit<BackwardOptions, 'gradTensors'>,
): void {
  checkOptions('backward', options, ['retainGraph', 'createGraph', 'inputs']);
  if (gradient !== undefined && gradient !== null && !(gradient instanceof Tensor)) {
    throw new TorchError(
      'BAD_ARGUMENT',
      'backward: the first argument is the gradient, a tensor; give options second: backward(null, { retainGraph: true })',
    );
  }
  backward(this, gradient === undefined || gradient === null ? options : { ...options, gradTensors: [gradient] });
};

/** A tensor or an edge, or an array of them, as an array of at least one. */
export function listOf(
  where: string,
  name: string,
  value: GradientTarget | readonly GradientTarget[],
): readonly GradientTarget[] {
  const list: readonly GradientTarget[] = isTarget(value) ? [value] : (value as readonly GradientTarget[]);
  if (!Array.isArray(list) || list.length === 0)
    throw new TorchError('BAD_ARGUMENT', `${where}: ${name} must be a tensor or an array of at least one`);
  for (let i = 0; i < list.length; i++) {
    const item: unknown = list[i];
    if (!isTarget(item))
      throw new TorchError(
        'BAD_ARGUMENT',
        `${where}: ${name}[${i}] is not a tensor but ${item === null ? 'null' : `a ${typeof item}`}`,
      );
  }
  return list;
}

/** Whether a value is a tensor or a gradient edge. */
export function isTarget(value: unknown): value is GradientTarget {
  return value instanceof Tensor || value instanceof GradientEdge;
}

/** Tells whoever records operators that a backward begins. */
export function forbidWhileRecording(where: string, roots: readonly GradientTarget[]): void {
  const [first] = roots;
  if (first instanceof Tensor) recorder?.beforeAccess(first, where);
}

const meta = native.metaArray;
const rootSizes = new Float64Array(64);

/** Checks roots and their gradients against each other; handles of the gradients, null where one is made of ones. */
export function gradientsOf(
  where: string,
  roots: readonly GradientTarget[],
  given: readonly (Tensor | null)[] | undefined,
): (number | null)[] {
  if (given !== undefined && !Array.isArray(given))
    throw new TorchError(
      'BAD_ARGUMENT',
      `${where}: the gradients are ${given === null ? 'null' : `a ${typeof given}`}; give an array with one for each tensor, null for a scalar`,
    );
  if (given !== undefined && given.length !== roots.length) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `${where}: ${given.length} gradients for ${roots.length} tensors; give one for each, null for a scalar`,
    );
  }
  const handles = new Array<number | null>(roots.length);
  for (let i = 0; i < roots.length; i++) handles[i] = checkedGradient(where, i, roots[i]!, given?.[i] ?? null);
  return handles;
}

/** One look at each tensor's description: this runs in every step. */
function checkedGradient(where: string, i: number, root: GradientTarget, gradient: Tensor | null): number | null {
  if (gradient !== null && !(gradient instanceof Tensor))
    throw new TorchError('BAD_ARGUMENT', `${where}: gradient ${i} is not a tensor but a ${typeof gradient}`);
  native.meta(root.handle);
  if (meta[META_REQUIRES_GRAD] !== 1) {
    throw new TorchError(
      'NO_GRAD',
      `${where}: tensor ${i} does not require a gradient: nothing it was computed from does, or it was computed inside noGrad()`,
    );
  }
  const isComplex = dtypeOfCode(meta[META_DTYPE]!).isComplex;
  const dims = meta[META_DIMS]!;
  if (gradient === null) {
    if (meta[META_NUMEL] !== 1) {
      throw new TorchError(
        'SHAPE',
        `${where}: tensor ${i} has shape [${root.shape.join(', ')}], and only a scalar needs no gradient; give its gradient, or reduce it with sum() or mean()`,
      );
    }
    if (isComplex) throw new TorchError('DTYPE', `${where}: tensor ${i} is complex, so its gradient must be given`);
    return null;
  }
  for (let d = 0; d < dims; d++) rootSizes[d] = meta[META_SIZES + d]!;
  native.meta(gradient.handle);
  let same = meta[META_DIMS] === dims;
  for (let d = 0; d < dims && same; d++) same = rootSizes[d] === meta[META_SIZES + d];
  if (!same) {
    throw new TorchError(
      'SHAPE',
      `${where}: gradient ${i} has shape [${gradient.shape.join(', ')}], its tensor [${root.shape.join(', ')}]; they must be the same`,
    );
  }
  if (dtypeOfCode(meta[META_DTYPE]!).isComplex !== isComplex) {
    throw new TorchError(
      'DTYPE',
      `${where}: gradient ${i} is ${gradient.dtype.name}, its tensor ${root.dtype.name}; both must be complex, or none`,
    );
  }
  return gradient.handle;
}

function handles(tensors: readonly GradientTarget[]): number[] {
  return tensors.map((tensor) => tensor.handle);
}

function flag(where: string, name: string, value: boolean | undefined): boolean | null {
  if (value === undefined) return null;
  if (typeof value !== 'boolean')
    throw new TorchError('BAD_ARGUMENT', `${where}: ${name} must be true or false, got ${String(value)}`);
  return value;
}
