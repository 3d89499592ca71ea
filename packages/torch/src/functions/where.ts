/** @file `x.where(condition, other)`: ATen has it as a function of the condition only. */
import { bindOp, callBound } from '../op/bind.ts';
import { type Scalar, Tensor } from '../tensor/tensor.ts';

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** This tensor's elements where the condition holds, those of `other` elsewhere. @example x.where(x.gt(0), 0) */
    where(condition: Tensor, other: Tensor | Scalar): Tensor;
  }
}

const [ofTensors, ofScalar] = [bindOp('aten::where.self'), bindOp('aten::where.ScalarOther')];

Tensor.prototype.where = function where(this: Tensor, condition: Tensor, other: Tensor | Scalar): Tensor {
  return callBound(other instanceof Tensor ? ofTensors : ofScalar, [condition, this, other]) as Tensor;
};
