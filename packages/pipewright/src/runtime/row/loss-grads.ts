/** @file The gradients that backwards begin with: the share of each microbatch's loss in the whole. */
import { type Device, type DType, fullLike, type Tensor, unscoped } from '@pipewright/torch';

/** The gradient of a microbatch's loss, and what it was made for. */
interface LossGrad {
  readonly grad: Tensor;
  readonly weight: number;
  readonly dtype: DType;
  readonly device: Device;
  readonly ndim: number;
}

/** The gradients of the losses by microbatch, kept from step to step: they are mostly the same. */
export class LossGrads {
  private readonly known: (LossGrad | undefined)[] = [];

  /** A tensor like a microbatch's loss, filled with its weight. */
  of(microbatch: number, loss: Tensor, weight: number): Tensor {
    const { dtype, device, ndim } = loss;
    const known = this.known[microbatch];
    if (known?.weight === weight && known.dtype === dtype && known.device === device && known.ndim === ndim)
      return known.grad;
    known?.grad.dispose();
    const grad = unscoped(() => fullLike(loss, weight));
    this.known[microbatch] = { grad, weight, dtype, device, ndim };
    return grad;
  }

  /** Frees them. */
  dispose(): void {
    for (const known of this.known.splice(0)) known?.grad.dispose(); // backwards need not come in order
  }
}
