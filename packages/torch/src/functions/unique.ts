/** @file The distinct elements of a tensor; ATen has them under an internal name. */
import { checkOptions } from '../base/errors.ts';
import { bindOp, callBound } from '../op/bind.ts';
import { Tensor } from '../tensor/tensor.ts';

/** What `unique` returns besides the elements, and along which dimension it looks. */
export interface UniqueOptions {
  sorted?: boolean | undefined;
  returnInverse?: boolean | undefined;
  returnCounts?: boolean | undefined;
  dim?: number | undefined;
}

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** The distinct elements; with `returnInverse` or `returnCounts` an array. @example x.unique({ returnCounts: true }) */
    unique(options: UniqueOptions & ({ returnInverse: true } | { returnCounts: true })): Tensor[];
    unique(options?: UniqueOptions): Tensor;
  }
}

/** The distinct elements of a tensor, sorted. @example unique(tensor([3, 1, 3])) // [1, 3] */
export function unique(
  x: Tensor,
  options: UniqueOptions & ({ returnInverse: true } | { returnCounts: true }),
): Tensor[];
export function unique(x: Tensor, options?: UniqueOptions): Tensor;
export function unique(x: Tensor, options: UniqueOptions = {}): Tensor | Tensor[] {
  checkOptions('unique', options, ['sorted', 'returnInverse', 'returnCounts', 'dim']);
  const { sorted = true, returnInverse = false, returnCounts = false, dim } = options;
  const flags = [sorted, returnInverse, returnCounts];
  const op = bindOp(dim === undefined ? 'aten::_unique2' : 'aten::unique_dim');
  const [values, inverse, counts] = callBound(op, dim === undefined ? [x, ...flags] : [x, dim, ...flags]) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const wanted = [values];
  if (returnInverse) wanted.push(inverse);
  else inverse.dispose();
  if (returnCounts) wanted.push(counts);
  else counts.dispose();
  return wanted.length === 1 ? values : wanted;
}

Object.assign(Tensor.prototype, {
  unique(this: Tensor, options?: UniqueOptions): Tensor | Tensor[] {
    return unique(this, options);
  },
});
