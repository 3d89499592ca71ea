/**
 * @file The hottest operators: each form here gets an unboxed C++ call (`native/generated/hot-ops.cc`) and a TypeScript
 * path that skips the choice of an overload (`src/generated/hot-ops.ts`). Any other form of a call takes the general way.
 */

/** One way of calling an operator. */
export interface HotForm {
  /** The public name in camelCase. */
  readonly name: string;
  /** The overload it means, as in `add.Tensor`. */
  readonly op: string;
  /**
   * A letter per argument, in schema order; arguments left out have their schema default. `T` tensor, `t` tensor or
   * null, `N` number as a Scalar, `i` integer, `f` float, `b` boolean, `I` list of integers (or one, where the schema
   * says `int[1]`), `A` list of tensors.
   */
  readonly args: string;
  /** How many arguments a caller must give; all of them unless said otherwise. */
  readonly min?: number;
}

const unary = (names: string): HotForm[] => names.split(' ').map((op) => ({ name: camel(op), op, args: 'T' }));

const binary = (names: string): HotForm[] =>
  names.split(' ').flatMap((op) => [
    { name: camel(op), op: `${op}.Tensor`, args: 'TT' },
    { name: camel(op), op: `${op}.Scalar`, args: 'TN' },
  ]);

function camel(name: string): string {
  return name.replace(/(?<=[a-z0-9])_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** The forms, in the order in which they are tried. */
export const hotForms: readonly HotForm[] = [
  ...binary('add sub mul div eq ne lt le gt ge add_ sub_ mul_ div_'),
  ...unary('neg abs exp log sqrt rsqrt square reciprocal tanh sigmoid relu silu sin cos erf clone detach contiguous t'),
  ...unary('zero_ relu_ neg_ exp_ sqrt_'),
  { name: 'matmul', op: 'matmul', args: 'TT' },
  { name: 'mm', op: 'mm', args: 'TT' },
  { name: 'bmm', op: 'bmm', args: 'TT' },
  { name: 'addmm', op: 'addmm', args: 'TTT' },
  { name: 'linear', op: 'linear', args: 'TTt', min: 2 },
  { name: 'layerNorm', op: 'layer_norm', args: 'TIttf', min: 2 },
  { name: 'rmsNorm', op: 'rms_norm', args: 'TIt', min: 2 },
  { name: 'gelu', op: 'gelu', args: 'T' },
  { name: 'softmax', op: 'softmax.int', args: 'Ti' },
  { name: 'logSoftmax', op: 'log_softmax.int', args: 'Ti' },
  { name: 'embedding', op: 'embedding', args: 'TTi', min: 2 },
  { name: 'crossEntropyLoss', op: 'cross_entropy_loss', args: 'TTtiif', min: 2 },
  { name: 'nllLoss', op: 'nll_loss', args: 'TTtii', min: 2 },
  { name: 'nllLossNd', op: 'nll_loss_nd', args: 'TTtii', min: 2 },
  { name: 'mseLoss', op: 'mse_loss', args: 'TTi', min: 2 },
  { name: 'scaledDotProductAttention', op: 'scaled_dot_product_attention', args: 'TTTtfb', min: 3 },
  { name: 'dropout', op: 'dropout', args: 'Tfb' },
  { name: 'view', op: 'view', args: 'TI' },
  { name: 'reshape', op: 'reshape', args: 'TI' },
  { name: 'expand', op: 'expand', args: 'TI' },
  { name: 'permute', op: 'permute', args: 'TI' },
  { name: 'repeat', op: 'repeat', args: 'TI' },
  { name: 'transpose', op: 'transpose.int', args: 'Tii' },
  { name: 'flatten', op: 'flatten.using_ints', args: 'Tii', min: 1 },
  { name: 'unsqueeze', op: 'unsqueeze', args: 'Ti' },
  { name: 'squeeze', op: 'squeeze.dim', args: 'Ti' },
  { name: 'select', op: 'select.int', args: 'Tii' },
  { name: 'narrow', op: 'narrow', args: 'Tiii' },
  { name: 'cat', op: 'cat', args: 'Ai', min: 1 },
  { name: 'stack', op: 'stack', args: 'Ai', min: 1 },
  { name: 'split', op: 'split.Tensor', args: 'Tii', min: 2 },
  { name: 'chunk', op: 'chunk', args: 'Tii', min: 2 },
  { name: 'unbind', op: 'unbind.int', args: 'Ti', min: 1 },
  { name: 'sum', op: 'sum', args: 'T' },
  { name: 'sum', op: 'sum.dim_IntList', args: 'TIb', min: 2 },
  { name: 'mean', op: 'mean', args: 'T' },
  { name: 'mean', op: 'mean.dim', args: 'TIb', min: 2 },
  { name: 'argmax', op: 'argmax', args: 'Ti' },
  { name: 'pow', op: 'pow.Tensor_Scalar', args: 'TN' },
  { name: 'pow', op: 'pow.Tensor_Tensor', args: 'TT' },
  { name: 'maximum', op: 'maximum', args: 'TT' },
  { name: 'minimum', op: 'minimum', args: 'TT' },
  { name: 'where', op: 'where.self', args: 'TTT' },
  { name: 'where', op: 'where.ScalarOther', args: 'TTN' },
  { name: 'maskedFill', op: 'masked_fill.Scalar', args: 'TTN' },
  { name: 'gather', op: 'gather', args: 'TiT' },
  { name: 'indexSelect', op: 'index_select', args: 'TiT' },
  { name: 'copy_', op: 'copy_', args: 'TT' },
  { name: 'fill_', op: 'fill_.Scalar', args: 'TN' },
];
