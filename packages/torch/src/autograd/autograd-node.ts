/** @file The graph that operators record: one node per operator, edges towards the leaves. */

import { native } from '../addon/addon.ts';
import { checkGiven } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';
import { disposeOwned, markOwned, type Owned, own, type Scope } from '../tensor/scope.ts';
import { Tensor } from '../tensor/tensor.ts';
import { addCallback } from './callbacks.ts';
import { HookHandle } from './hook-handle.ts';
import { engine } from './native.ts';

/** Takes the gradients that a node made and those it had; may return others in place of the made ones. */
export type NodeHook = (
  gradInputs: (Tensor | null)[],
  gradOutputs: (Tensor | null)[],
) => readonly (Tensor | null)[] | void;

/** Takes the gradients that arrive at a node; may return others. */
export type NodePrehook = (gradOutputs: (Tensor | null)[]) => readonly (Tensor | null)[] | void;

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** The node that computed this tensor; null for a leaf. A node keeps the graph below it alive until disposed of. */
    readonly gradFn: AutogradNode | null;
    /** The node of `gradFn`, or the one that accumulates into this leaf; null where no gradient is required. */
    readonly gradNode: AutogradNode | null;
  }
}

/**
 * A node of the graph: freed with the innermost scope, as tensors are.
 *
 * @example for (const [node] of loss.gradFn.nextFunctions) console.log(node?.name) // AddmmBackward0
 */
export class AutogradNode implements Owned {
  /** libtorch's handle; zero once disposed of. */
  h: number;
  owner: Scope | null = null;

  /** Wraps a handle that the addon gave out. */
  constructor(handle: number) {
    this.h = handle;
    own(this);
  }

  /** The handle, or an error when the node was disposed of. */
  get handle(): number {
    if (this.h === 0)
      throw new TorchError(
        'DISPOSED',
        'this graph node was disposed of (by dispose(), or the end of a scope); read gradFn again',
      );
    return this.h;
  }

  /** `AddmmBackward0`, `AccumulateGrad`, or the name of a custom function. */
  get name(): string {
    return native.nodeName(this.handle);
  }

  /** The order in which nodes were made: later ones have larger numbers. */
  get sequence(): number {
    return native.nodeId(this.handle);
  }

  /** The nodes that get this node's gradients, each with the number of its input; null where no gradient flows. */
  get nextFunctions(): [node: AutogradNode | null, input: number][] {
    const flat = native.nodeNext(this.handle);
    const next: [AutogradNode | null, number][] = [];
    for (let i = 0; i < flat.length; i += 2) {
      const handle = flat[i]!;
      next.push([handle === 0 ? null : new AutogradNode(handle), flat[i + 1]!]);
    }
    return next;
  }

  /** Whether both are the same node of the graph. */
  isSame(other: AutogradNode): boolean {
    checkGiven('isSame', other instanceof AutogradNode, ['the argument', other], 'a node');
    return native.nodeKey(this.handle) === native.nodeKey(other.handle);
  }

  /** A key that is the same for the same node while it lives. */
  get key(): bigint {
    return native.nodeKey(this.handle);
  }

  /** Calls `hook` after the node has run, with the gradients it made and those it had. */
  registerHook(hook: NodeHook): HookHandle {
    const id = addCallback((tensors, made) => hook(tensors.slice(0, made), tensors.slice(made)) ?? undefined);
    engine.registerNodeHook(this.handle, id);
    return new HookHandle(id);
  }

  /** Calls `hook` before the node runs, with the gradients that arrived. */
  registerPrehook(hook: NodePrehook): HookHandle {
    const id = addCallback((tensors) => hook(tensors) ?? undefined);
    engine.registerNodePrehook(this.handle, id);
    return new HookHandle(id);
  }

  dispose(): void {
    disposeOwned(this);
  }

  [Symbol.dispose](): void {
    disposeOwned(this);
  }

  /** How its handle is given back. */
  freeHandle(handle: number): void {
    native.releaseNode(handle);
  }

  toString(): string {
    return `<${this.name}>`;
  }
}

markOwned(AutogradNode);

Object.defineProperty(Tensor.prototype, 'gradFn', {
  configurable: true,
  get(this: Tensor): AutogradNode | null {
    return this.isLeaf ? null : this.gradNode;
  },
});

Object.defineProperty(Tensor.prototype, 'gradNode', {
  configurable: true,
  get(this: Tensor): AutogradNode | null {
    const handle = native.gradFn(this.handle);
    return handle === 0 ? null : new AutogradNode(handle);
  },
});
