/** @file Gradients compared with finite differences, as PyTorch's gradcheck does. */
import { checkFunction, checkGiven } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { callOp } from '../op/call.ts';
import { scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { grad } from './backward.ts';
import { noGrad } from './modes.ts';

/** How closely gradients must agree. */
export interface GradcheckOptions {
  /** Step of the finite differences. Default 1e-6. */
  eps?: number | undefined;
  /** Default 1e-5. */
  atol?: number | undefined;
  /** Default 1e-3. */
  rtol?: number | undefined;
  /** How far two backwards over the same graph may differ. Default 0. */
  nondetTol?: number | undefined;
  /** False returns false instead of throwing. Default true. */
  raiseException?: boolean | undefined;
}

/** A function of tensors (and other values) that returns tensors. */
export type Checked = (...inputs: never[]) => Tensor | readonly Tensor[];

/**
 * Compares the gradients of `fn` at `inputs` with central differences; inputs that require gradients must be float64.
 * Complex numbers are taken as pairs of real ones.
 *
 * @example gradcheck((x: Tensor) => x.sin(), [randn([3], { dtype: float64, requiresGrad: true })])
 */
export function gradcheck(fn: Checked, inputs: readonly unknown[], options?: GradcheckOptions): boolean {
  checkCall('gradcheck', fn, inputs);
  checkOptions('gradcheck', options, ['eps', 'atol', 'rtol', 'nondetTol', 'raiseException']);
  try {
    scope(() => check(fn as (...inputs: unknown[]) => Tensor | readonly Tensor[], inputs, options));
    return true;
  } catch (error) {
    if (options?.raiseException === false && error instanceof TorchError && error.code === 'GRADCHECK') return false;
    throw error;
  }
}

function checkCall(where: string, fn: unknown, inputs: unknown): void {
  checkFunction(where, fn);
  checkGiven(where, Array.isArray(inputs), ['the second argument', inputs], 'an array of inputs');
}

/**
 * Compares the gradients of the gradients of `fn` with central differences.
 *
 * @example gradgradcheck((x: Tensor) => x.tanh(), [randn([3], { dtype: float64, requiresGrad: true })])
 */
export function gradgradcheck(fn: Checked, inputs: readonly unknown[], options?: GradcheckOptions): boolean {
  checkCall('gradgradcheck', fn, inputs);
  const run = fn as (...values: unknown[]) => Tensor | readonly Tensor[];
  return scope(() => {
    const outputs = differentiable(run(...inputs));
    const gradOutputs = outputs.map((output) => (callOp('aten::randn_like', [output]) as Tensor).requiresGrad_());
    const wanted = inputs.flatMap((input, i) => (input instanceof Tensor && input.requiresGrad ? [i] : []));
    const second = (...values: unknown[]): Tensor[] => {
      const given = values.slice(0, inputs.length);
      const again = differentiable(run(...given));
      const targets = wanted.map((i) => given[i] as Tensor);
      const found = grad(again, targets, {
        gradOutputs: values.slice(inputs.length) as Tensor[],
        createGraph: true,
        allowUnused: true,
      });
      return found.filter((item): item is Tensor => item?.requiresGrad === true);
    };
    return gradcheck(second as unknown as Checked, [...inputs, ...gradOutputs], options);
  });
}

function differentiable(result: Tensor | readonly Tensor[]): Tensor[] {
  const isRight = result instanceof Tensor || Array.isArray(result);
  checkGiven('gradcheck', isRight, ['what the function returned', result], 'back a tensor or an array of tensors');
  return (result instanceof Tensor ? [result] : [...result]).filter(
    (item) => item instanceof Tensor && item.requiresGrad,
  );
}

function check(
  fn: (...inputs: unknown[]) => Tensor | readonly Tensor[],
  inputs: readonly unknown[],
  options: GradcheckOptions | undefined,
): void {
  const positions = inputs.flatMap((input, i) => (input instanceof Tensor && input.requiresGrad ? [i] : []));
  if (positions.length === 0)
    throw new TorchError('NO_GRAD', 'gradcheck: no input requires a gradient; set requiresGrad on those to check');
  for (const i of positions) {
    const { name } = (inputs[i] as Tensor).dtype;
    if (name !== 'float64' && name !== 'complex128')
      throw new TorchError('DTYPE', `gradcheck: inputs[${i}] is ${name}; differences need float64 or complex128`);
  }
  const outputs = differentiable(fn(...inputs));
  if (outputs.length === 0)
    throw new TorchError('GRADCHECK', 'gradcheck: no output requires a gradient, so there is nothing to compare');
  const targets = positions.map((i) => inputs[i] as Tensor);
  const analytic = outputs.map((output, o) =>
    jacobian(output, targets, { output: o, nondetTol: options?.nondetTol ?? 0 }),
  );
  positions.forEach((position, t) => {
    const numeric = differences(() => differentiable(fn(...inputs)), inputs[position] as Tensor, options?.eps ?? 1e-6);
    outputs.forEach((_, o) => compare(numeric[o]!, analytic[o]![t]!, { output: o, input: position }, options));
  });
}

/** Real numbers of a tensor, in order; a complex one gives two each. */
function realValues(tensor: Tensor): Float64Array {
  return scope(() => {
    const plain = tensor.detach();
    const real = plain.isComplex()
      ? (callOp('aten::view_as_real', [callOp('aten::resolve_conj', [plain])]) as Tensor)
      : plain;
    return Float64Array.from((real.to('float64') as Tensor).toTypedArray() as Float64Array);
  });
}

/** Rows: gradient of each real number of the output, for each target. */
function jacobian(
  output: Tensor,
  targets: readonly Tensor[],
  where: { output: number; nondetTol: number },
): Float64Array[][] {
  const width = realValues(output).length;
  const rows: Float64Array[][] = targets.map(() => []);
  for (let k = 0; k < width; k++) {
    const first = oneGradient(output, targets, k);
    const second = oneGradient(output, targets, k);
    first.forEach((row, t) => {
      const again = second[t]!;
      const worst = row.reduce((most, value, i) => Math.max(most, Math.abs(value - again[i]!)), 0);
      if (worst > where.nondetTol) {
        throw new TorchError(
          'GRADCHECK',
          `gradcheck: two backwards of output ${where.output} differ by ${worst}; the gradient is not deterministic (allow it with nondetTol)`,
        );
      }
      rows[t]!.push(row);
    });
  }
  return rows;
}

function oneGradient(output: Tensor, targets: readonly Tensor[], k: number): Float64Array[] {
  return scope(() => {
    const seed = callOp('aten::zeros_like', [output.detach()], { memoryFormat: 'contiguous_format' }) as Tensor;
    const flat = callOp('aten::view', [seed.isComplex() ? callOp('aten::view_as_real', [seed]) : seed, [-1]]) as Tensor;
    callOp('aten::fill_.Scalar', [callOp('aten::select.int', [flat, 0, k]), 1]);
    const found = grad([output], targets, { gradOutputs: [seed], retainGraph: true, allowUnused: true });
    return found.map((item, t) =>
      item === null ? new Float64Array(realValues(targets[t]!).length) : realValues(item),
    );
  });
}

/** For each output: rows of its real numbers, columns the real numbers of the input. */
function differences(outputsOf: () => Tensor[], input: Tensor, eps: number): Float64Array[][] {
  const evaluate = (): Float64Array[] => scope(() => outputsOf().map(realValues));
  const size = realValues(input).length;
  const result: Float64Array[][] = evaluate().map((row) => Array.from(row, () => new Float64Array(size)));
  for (let i = 0; i < size; i++) {
    nudge(input, i, eps);
    const high = evaluate();
    nudge(input, i, -2 * eps);
    const low = evaluate();
    nudge(input, i, eps);
    high.forEach((row, o) =>
      row.forEach((value, k) => {
        result[o]![k]![i] = (value - low[o]![k]!) / (2 * eps);
      }),
    );
  }
  return result;
}

/** Adds to the i-th real number of a tensor in place, whatever its strides. */
function nudge(tensor: Tensor, index: number, by: number): void {
  scope(() =>
    noGrad(() => {
      let place = tensor.isComplex() ? (callOp('aten::view_as_real', [tensor.detach()]) as Tensor) : tensor.detach();
      let rest = index;
      const sizes = place.shape;
      const steps = sizes.map((_, d) => sizes.slice(d + 1).reduce((product, size) => product * size, 1));
      for (const step of steps) {
        place = callOp('aten::select.int', [place, 0, Math.floor(rest / step)]) as Tensor;
        rest %= step;
      }
      callOp('aten::add_.Scalar', [place, by]);
    }),
  );
}

function compare(
  numeric: readonly Float64Array[],
  analytic: readonly Float64Array[],
  where: { output: number; input: number },
  options: GradcheckOptions | undefined,
): void {
  const [atol, rtol] = [options?.atol ?? 1e-5, options?.rtol ?? 1e-3];
  numeric.forEach((row, k) =>
    row.forEach((expected, i) => {
      const found = analytic[k]![i]!;
      if (Math.abs(found - expected) <= atol + rtol * Math.abs(expected)) return;
      throw new TorchError(
        'GRADCHECK',
        `gradcheck: output ${where.output} element ${k}, input ${where.input} element ${i}: the gradient is ${found}, differences give ${expected} (atol ${atol}, rtol ${rtol})`,
      );
    }),
  );
}
