/** @file The public API of @pipewright/torch. */
export * from './creation.ts';
export * from './device.ts';
export * from './dtype.ts';
export { TorchError } from './errors.ts';
export { callOp } from './op/call.ts';
export { Generator, getRngState, initialSeed, manualSeed, setRngState } from './random.ts';
export { keep, liveTensors, Scope, scope, unscoped } from './scope.ts';
export * from './tensor.ts';
