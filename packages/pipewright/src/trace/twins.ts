/** @file Twins of tensors on the meta device, for a trace that computes nothing: of the same type, sizes and strides, without memory. */
import { Tensor } from '@pipewright/torch';
import { type BoundOp, bindOp, callGiven, withRecorder } from '@pipewright/torch/internal';
import { PipelineError } from '../base/errors.ts';
import { here } from './source-line.ts';

/** The twins of a run, made when an operator first uses a tensor. */
export class MetaTwins {
  private readonly twins = new Map<Tensor, Tensor>();

  /** The twin of a tensor; a tensor on the meta device is its own. */
  of(tensor: Tensor): Tensor {
    if (tensor.isDisposed) throw disposedError();
    const known = this.twins.get(tensor);
    if (known !== undefined) return known;
    if (withRecorder(null, () => tensor.isMeta)) return tensor;
    const twin = metaTwin(tensor);
    this.twins.set(tensor, twin);
    return twin;
  }

  /** A value with twins in the place of its tensors. */
  in(value: unknown): unknown {
    if (value instanceof Tensor) return this.of(value);
    return Array.isArray(value) ? value.map((item) => this.in(item)) : value;
  }

  /** The arguments of an operator with twins in the place of tensors; what it creates is on the meta device too. */
  arguments(op: BoundOp, given: readonly unknown[]): unknown[] {
    const values = given.map((value) => this.in(value));
    const device = op.positions.get('device');
    const isFactory = device !== undefined && !values.flat().some((value) => value instanceof Tensor);
    if (device !== undefined && (isFactory || (values[device] !== undefined && values[device] !== null)))
      values[device] = 'meta';
    const pin = op.positions.get('pinMemory');
    if (pin !== undefined) values[pin] = undefined;
    return values;
  }
}

/** A tensor of the same shape and strides on the meta device. */
export function metaTwin(tensor: Tensor): Tensor {
  return withRecorder(null, () => {
    const given = [tensor.shape, tensor.stride(), tensor.dtype, undefined, 'meta'];
    const twin = callGiven(bindOp('aten::empty_strided'), given) as Tensor;
    if (tensor.requiresGrad) twin.requiresGrad_();
    return twin;
  });
}

/** The error for a tensor that a traced run uses after its end. */
export function disposedError(): PipelineError {
  return new PipelineError(
    'TRACE_DISPOSED',
    `trace: a tensor${here()} is used after it was disposed of; keep() it, or return it from the scope`,
  );
}
