/** @file The place in the graph that a tensor's gradient goes to, without the tensor. */
import { native } from '../addon/addon.ts';
import { META_DEVICE_INDEX, META_DEVICE_TYPE, META_DIMS, META_DTYPE, META_SIZES } from '../addon/generated/border.ts';
import { TorchError } from '../base/errors.ts';
import { type Device, deviceText } from '../tensor/device.ts';
import { type DType, dtypeOfCode } from '../tensor/dtype.ts';
import { disposeOwned, markOwned, type Owned, own, type Scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { AutogradNode } from './autograd-node.ts';

const meta = native.metaArray;

/**
 * An edge of the graph, which `backward`, `grad` and `inputBackward` take in the place of a tensor. It keeps the graph alive
 * but not the values of the tensor, and is freed with the innermost scope, as tensors are.
 *
 * @example const edge = getGradientEdge(y); y.dispose(); backward(edge, { gradTensors: [dy] })
 */
export class GradientEdge implements Owned {
  /** A handle of a tensor without memory that leads to the same place; zero once disposed of. */
  h: number;
  owner: Scope | null = null;

  /** The edge to the gradient of output `outputNr` of a node; `getGradientEdge` gives that of a tensor. */
  constructor(node: AutogradNode, outputNr = 0) {
    if (!(node instanceof AutogradNode))
      throw new TorchError('BAD_ARGUMENT', 'GradientEdge: give a node of the graph, as gradFn of a tensor');
    if (!Number.isInteger(outputNr))
      throw new TorchError('BAD_ARGUMENT', `GradientEdge: outputNr is ${String(outputNr)}; give a whole number`);
    this.h = native.edge(node.handle, outputNr);
    own(this);
  }

  /** The handle, or an error when the edge was disposed of. */
  get handle(): number {
    if (this.h === 0)
      throw new TorchError(
        'DISPOSED',
        'this gradient edge was disposed of (by dispose(), or the end of a scope); keep() it, or get it again',
      );
    return this.h;
  }

  /** The node that gets the gradient. */
  get node(): AutogradNode {
    return new AutogradNode(native.gradFn(this.handle));
  }

  /** Which output of the node's operator the tensor is. */
  get outputNr(): number {
    return native.outputNr(this.handle);
  }

  /** The shape of the tensor and of its gradient. */
  get shape(): number[] {
    native.meta(this.handle);
    return Array.from({ length: meta[META_DIMS]! }, (_, i) => meta[META_SIZES + i]!);
  }

  /** The element type of the tensor. */
  get dtype(): DType {
    native.meta(this.handle);
    return dtypeOfCode(meta[META_DTYPE]!);
  }

  /** Where the tensor is. */
  get device(): Device {
    native.meta(this.handle);
    return deviceText(meta[META_DEVICE_TYPE]!, meta[META_DEVICE_INDEX]!);
  }

  /** True: an edge leads to a gradient. */
  get requiresGrad(): true {
    return true;
  }

  dispose(): void {
    disposeOwned(this);
  }

  [Symbol.dispose](): void {
    disposeOwned(this);
  }

  toString(): string {
    using node = this.node;
    return `<edge to output ${this.outputNr} of ${node.name}, ${this.dtype.name}[${this.shape.join(', ')}]>`;
  }
}

markOwned(GradientEdge);

/** What a backward begins with, or stops at. */
export type GradientTarget = Tensor | GradientEdge;

/**
 * The place that the gradient of a tensor goes to. With it a backward can begin or stop there when the tensor is gone.
 *
 * @example const [dx] = grad(loss, getGradientEdge(x))
 */
export function getGradientEdge(tensor: Tensor): GradientEdge {
  if (!(tensor instanceof Tensor)) throw new TorchError('BAD_ARGUMENT', 'getGradientEdge: give a tensor');
  using node = tensor.gradNode;
  if (node === null)
    throw new TorchError(
      'NO_GRAD',
      'getGradientEdge: the tensor does not require a gradient; set requiresGrad, or leave it out',
    );
  return new GradientEdge(node, native.outputNr(tensor.handle));
}
