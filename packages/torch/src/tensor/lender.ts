/**
 * @file Tensors for another JavaScript thread, by number and without a copy: one thread lends, the other takes. What nobody takes
 * is freed when the lender is closed.
 */
import { native } from '../addon/addon.ts';
import { Tensor } from './tensor.ts';

/**
 * What a thread lends to others. Its number can be sent in a message; `Lender.of` makes a lender of it there.
 *
 * @example const lender = Lender.open(); const n = lender.lend(x); // elsewhere: Lender.of(lender.number).take(n)
 */
export class Lender {
  /** What other threads know it by. */
  readonly number: number;

  private constructor(number: number) {
    this.number = number;
  }

  /** A new lender. */
  static open(): Lender {
    return new Lender(native.openLender());
  }

  /** The lender of a number. */
  static of(number: number): Lender {
    return new Lender(number);
  }

  /** Lends a tensor and gives its number; the tensor here stays as it is. 0 where the lender was closed. */
  lend(tensor: Tensor): number {
    return native.lendTensor(this.number, tensor.handle);
  }

  /** The tensor of a number, once. */
  take(number: number): Tensor {
    return Tensor.adopt(native.takeLent(this.number, number));
  }

  /** Makes the calling thread the lender's own, so that others learn of its end. */
  attach(): void {
    native.attachLender(this.number);
  }

  /** Whether the thread that the lender was attached to has ended, in whatever way. */
  get hasEnded(): boolean {
    return native.hasLenderEnded(this.number);
  }

  /** Frees what nobody has taken, and says how many tensors that were. */
  close(): number {
    return native.closeLender(this.number);
  }
}
