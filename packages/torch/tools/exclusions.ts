/**
 * @file Operators that get no method or function of their own, and why. `callOp` reaches every one of them by its
 * full name all the same.
 */
import { baseName, isOutVariant, type Schema } from './schema.ts';

/** Whole families, by the base name. */
const families: readonly (readonly [RegExp, string])[] = [
  [/^_/, 'internal to libtorch'],
  [/_backward(_|$)|_jvp$|^mps_|^lstm_mps/, 'a derivative: autograd calls it'],
  [/^(cudnn|miopen|mkldnn|fbgemm)_/, 'one backend of a general operator'],
  [
    /^(quantized_|fake_quantize|fused_moving_avg|choose_qparams|q_|empty_quantized|int_repr|qscheme)/,
    'quantization is out of scope',
  ],
  [/^sym_/, 'symbolic shapes of the tracer'],
  [
    /^(lift|lift_fresh|resize_as_sparse_?|copy_sparse_to_sparse_?|sparse_resize(_and_clear)?_?)$/,
    'internal to libtorch',
  ],
  [/_overrideable$|_functional$|^is_vulkan_available$|^is_distributed$/, 'internal to libtorch'],
  [/^(?!index_).*_copy$/, 'the copying twin of a view, for functionalization'],
  [
    /^batch_norm_(elemt|gather_stats|gather_stats_with_counts|stats|update_stats)$/,
    'a part of synchronized batch norm on CUDA',
  ],
  [/^nested_|^(flatten|unflatten)_dense_tensors$|^hash_tensor$/, 'internal to libtorch'],
];

/** Single operators, by base name. */
export const excludedNames: ReadonlyMap<string, string> = new Map([
  ['requires_grad_', 'Tensor.requiresGrad_'],
  ['retain_grad', 'Tensor.retainGrad'],
  ['retains_grad', 'Tensor.retainGrad'],
  ['set_data', 'Tensor.setData'],
  ['shallow_copy_data_', 'Tensor.setData'],
  ['data', 'use detach()'],
  ['output_nr', 'the graph is walked with gradFn'],
  ['is_leaf', 'Tensor.isLeaf'],
  ['item', 'Tensor.item'],
  ['dim', 'Tensor.dim'],
  ['numel', 'Tensor.numel'],
  ['size', 'Tensor.size'],
  ['stride', 'Tensor.stride'],
  ['storage_offset', 'Tensor.storageOffset'],
  ['is_contiguous', 'Tensor.isContiguous'],
  ['is_complex', 'Tensor.isComplex'],
  ['is_floating_point', 'Tensor.isFloatingPoint'],
  ['is_inference', 'Tensor.isInference'],
  ['alias', 'Tensor.alias'],
  ['get_device', 'Tensor.device'],
  ['numpy_T', 'Tensor.T'],
  ['matrix_H', 'Tensor.H'],
  ['mT', 'Tensor.mT'],
  ['mH', 'Tensor.mH'],
  ['real', 'Tensor.real'],
  ['imag', 'Tensor.imag'],
  ['to', 'written by hand in src/functions/convert.ts: its overloads share one form'],
  ['slice', 'Tensor.slice takes ranges'],
  ['set', 'the functional twin of set_'],
  ['set_', 'Tensor.set_ assigns to an index'],
  ['record_stream', 'takes a stream of CUDA'],
  ['get_gradients', 'belongs to distributed autograd'],
  ['from_file', 'loadSafetensors maps files'],
  ['range', 'deprecated in PyTorch: arange'],
  ['ger', 'deprecated in PyTorch: outer'],
  ['geqrf', 'raw LAPACK: linalgQr'],
  ['lift_fresh', 'internal to libtorch'],
]);

/** Types that TypeScript has no value for. */
const untyped = /Storage|Stream|Dict|QScheme|__torch__/;

/** Why this overload is not on the typed surface, or nothing when it is. */
export function whyExcluded(schema: Schema): string | undefined {
  const name = baseName(schema);
  if (!schema.name.startsWith('aten::')) return 'not an ATen operator';
  const single = excludedNames.get(name);
  if (single !== undefined) return single;
  for (const [pattern, reason] of families) if (pattern.test(name)) return reason;
  if (isOutVariant(schema)) return 'writes into an out argument';
  const odd = [...schema.args.map((arg) => arg.type), ...schema.returns].find((type) => untyped.test(type));
  return odd === undefined ? undefined : `no TypeScript value for ${odd}`;
}
