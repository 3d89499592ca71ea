/** @file Hooks on tensors: functions called with a gradient as it arrives, or after it was accumulated. */
import { TorchError } from '../base/errors.ts';
import { Tensor } from '../tensor/tensor.ts';
import { addCallback } from './callbacks.ts';
import { HookHandle } from './hook-handle.ts';
import { engine } from './native.ts';

declare module '../tensor/tensor.ts' {
  interface Tensor {
    /** Calls `hook` with the gradient of this tensor during backward; what it returns takes the gradient's place. @example x.registerHook((g) => g.mul(2)) */
    registerHook(hook: (grad: Tensor) => Tensor | null | void): HookHandle;
    /** Calls `hook` with this leaf after its gradient was accumulated. @example w.registerPostAccumulateGradHook((p) => step(p)) */
    registerPostAccumulateGradHook(hook: (leaf: Tensor) => void): HookHandle;
  }
}

Tensor.prototype.registerHook = function (this: Tensor, hook: (grad: Tensor) => Tensor | null | void): HookHandle {
  checkHook('registerHook', this, hook);
  const id = addCallback(([gradient]) => {
    const result = hook(gradient!);
    return result === undefined || result === null ? undefined : [checkedGradient(result, gradient!)];
  });
  engine.registerHook(this.handle, id);
  return new HookHandle(id);
};

Tensor.prototype.registerPostAccumulateGradHook = function (this: Tensor, hook: (leaf: Tensor) => void): HookHandle {
  checkHook('registerPostAccumulateGradHook', this, hook);
  if (!this.isLeaf) {
    throw new TorchError(
      'NOT_LEAF',
      'registerPostAccumulateGradHook: gradients are accumulated into leaves only, and this tensor was computed; use registerHook',
    );
  }
  const id = addCallback(([leaf]) => {
    hook(leaf!);
    return undefined;
  });
  engine.registerAccumulatedHook(this.handle, id);
  return new HookHandle(id);
};

function checkHook(where: string, tensor: Tensor, hook: unknown): void {
  if (typeof hook !== 'function')
    throw new TorchError('BAD_ARGUMENT', `${where}: expected a function, got a ${typeof hook}`);
  if (!tensor.requiresGrad)
    throw new TorchError(
      'NO_GRAD',
      `${where}: the tensor does not require a gradient, so the hook would never run; set requiresGrad first`,
    );
}

function checkedGradient(result: unknown, gradient: Tensor): Tensor {
  if (!(result instanceof Tensor))
    throw new TorchError('BAD_ARGUMENT', `a hook on a tensor must return a tensor or nothing, got a ${typeof result}`);
  const [is, was] = [result.shape, gradient.shape];
  if (is.length !== was.length || is.some((size, i) => size !== was[i])) {
    throw new TorchError(
      'SHAPE',
      `a hook on a tensor returned a gradient of shape [${is.join(', ')}] in place of [${was.join(', ')}]`,
    );
  }
  if (result.dtype !== gradient.dtype || result.device !== gradient.device) {
    throw new TorchError(
      'DTYPE',
      `a hook on a tensor returned ${result.dtype.name} on ${result.device} in place of ${gradient.dtype.name} on ${gradient.device}`,
    );
  }
  return result;
}
