/** @file Whether operators record gradients in this thread. */

import { native } from '../addon/addon.ts';
import { checkFunction, show } from '../base/checks.ts';
import { TorchError } from '../base/errors.ts';

/** Whether operators record gradients now. */
export function isGradEnabled(): boolean {
  return native.isGradEnabled();
}

/** Switches recording on or off until switched again; returns what was set before. Prefer `noGrad(() => ...)`. */
export function setGradEnabled(on: boolean): boolean {
  if (typeof on !== 'boolean')
    throw new TorchError('BAD_ARGUMENT', `setGradEnabled: expected true or false, got ${show(on)}`);
  return native.setGradEnabled(on);
}

/** Runs `body` without recording gradients. @example noGrad(() => weight.sub_(grad.mul(0.1))) */
export function noGrad<T>(body: () => T): T {
  return withGrad('noGrad', false, body);
}

/** Runs `body` recording gradients, also inside `noGrad`. @example noGrad(() => enableGrad(() => loss(x))) */
export function enableGrad<T>(body: () => T): T {
  return withGrad('enableGrad', true, body);
}

function withGrad<T>(where: string, on: boolean, body: () => T): T {
  checkFunction(where, body);
  const before = native.setGradEnabled(on);
  try {
    return synchronous(where, body());
  } finally {
    native.setGradEnabled(before);
  }
}

/** Runs `body` in inference mode: nothing is recorded, and what is made there cannot be used for gradients later. @example inferenceMode(() => model.forward(x)) */
export function inferenceMode<T>(body: () => T): T {
  checkFunction('inferenceMode', body);
  native.enterInference(true);
  try {
    return synchronous('inferenceMode', body());
  } finally {
    native.exitInference();
  }
}

/** Whether inference mode is on. */
export function isInferenceModeEnabled(): boolean {
  return native.isInference();
}

/** Refuses a promise: the mode would be over before its work is done. */
export function synchronous<T>(where: string, result: T): T {
  if (!(result instanceof Promise)) return result;
  result.catch(() => undefined);
  throw new TorchError(
    'ASYNC',
    `${where}: the function is asynchronous, so the mode would end before its work does; await outside and pass a synchronous function`,
  );
}
