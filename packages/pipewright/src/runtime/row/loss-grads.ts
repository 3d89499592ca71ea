/** @file The gradients that backwards begin with: the share of each microbatch's loss in the whole. */
import { type Device, type DType, fullLike, noGrad, type Tensor, unscoped } from '@pipewright/torch';

/** The gradient of a microbatch's loss, and what it was made for. */
interface LossGrad {
  readonly grad: Tensor;
  readonly weight: number;
  readonly dtype: DType;
  readonly device: Device;
  readonly ndim: number;
}

/** The source of these gradients. */
export interface LossGradSource {
  /** A tensor like a microbatch's loss, filled with its weight. */
  of(microbatch: number, loss: Tensor, weight: number): Tensor;
}

/** The gradients of the losses by microbatch, kept from step to step: they are mostly the same. */
export class LossGrads implements LossGradSource {
  private readonly known: (LossGrad | undefined)[] = [];

  of(microbatch: number, loss: Tensor, weight: number): Tensor {
    const known = this.known[microbatch];
    if (known?.weight === weight && isLike(known, loss)) return known.grad;
    known?.grad.dispose();
    const grad = unscoped(() => fullLike(loss, weight));
    const { dtype, device, ndim } = loss;
    this.known[microbatch] = { grad, weight, dtype, device, ndim };
    return grad;
  }

  /** Tensors like those of the last step, for a step that is captured as a graph: they belong to the graph. */
  forRecording(): RecordedLossGrads {
    const own = this.known.map(
      (known) => known && { ...known, grad: unscoped(() => noGrad(() => known.grad.clone())), weight: Number.NaN },
    );
    return new RecordedLossGrads(own);
  }

  /** Frees them. */
  dispose(): void {
    for (const known of this.known.splice(0)) known?.grad.dispose(); // backwards need not come in order
  }
}

/**
 * The gradients of the losses of a captured step. The graph reads their memory in every replay: it lies outside of the graph, is used
 * for nothing else, and is filled before a replay if the weights have changed.
 */
export class RecordedLossGrads implements LossGradSource {
  private readonly own: readonly (LossGrad | undefined)[];
  /** By microbatch: the weight when it was captured, and the one that its tensor has now. */
  private readonly recorded: number[] = [];
  private readonly filled: number[] = [];

  constructor(own: readonly (LossGrad | undefined)[]) {
    this.own = own;
  }

  /** The tensor. It is filled after the capture: a fill inside of it would be repeated by every replay. */
  of(microbatch: number, loss: Tensor, weight: number): Tensor {
    const own = this.own[microbatch];
    if (own === undefined || !isLike(own, loss))
      throw new Error(`the loss of microbatch ${microbatch} has another shape or type than in the step before`);
    this.recorded[microbatch] = weight;
    return own.grad;
  }

  /** Fills the tensors for a replay; with a divisor, the weight of every loss is one part of it. */
  fill(divisor?: number): void {
    this.recorded.forEach((recorded, microbatch) => {
      const weight = divisor === undefined ? recorded : 1 / divisor;
      if (this.filled[microbatch] === weight) return;
      noGrad(() => this.own[microbatch]!.grad.fill_(weight));
      this.filled[microbatch] = weight;
    });
  }

  /** Frees them. */
  dispose(): void {
    for (const own of this.own) own?.grad.dispose();
  }
}

function isLike({ dtype, device, ndim }: LossGrad, loss: Tensor): boolean {
  return dtype === loss.dtype && device === loss.device && ndim === loss.ndim;
}
