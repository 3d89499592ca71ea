/** @file The public API of @pipewright/torch. */
/// <reference types="node" preserve="true" />
// Symbol.dispose for those who compile against us with an older `lib`.
/// <reference lib="esnext.disposable" preserve="true" />
export * from './autograd/index.ts';
export { TorchError, type TorchErrorCode } from './base/errors.ts';
export * as cuda from './cuda/index.ts';
export * as distributed from './distributed/index.ts';
export * from './functions/creation.ts';
export * from './generated/functions.ts';
export * from './tensor/device.ts';
export * from './tensor/dtype.ts';

import './generated/methods.ts';

export { MappedFile, type MappedTensor } from './files/mapped-file.ts';
export { type ProfileOptions, profile } from './files/profile.ts';
export type { ToOptions } from './functions/convert.ts';
export { type Index, Range, range, type SliceItem } from './functions/indexing.ts';
export * as nn from './nn/index.ts';
export { callOp, listOps, type OpSchema } from './op/call.ts';

import './functions/convert.ts';
import './functions/where.ts';

export { FloatScalar, float } from './base/float-scalar.ts';
export {
  loadSafetensors,
  readSafetensorsHeader,
  type SafetensorsEntry,
  type SafetensorsHeader,
  saveSafetensors,
} from './files/safetensors.ts';
export { type PrintOptions, setPrintOptions } from './functions/print.ts';
export { type UniqueOptions, unique } from './functions/unique.ts';
export type * from './generated/options.ts';
export * as optim from './optim/index.ts';
export { Lender } from './tensor/lender.ts';
export { Generator, getRngState, initialSeed, manualSeed, setRngState } from './tensor/random.ts';
export type { CheckpointOptions, FunctionGradients, FunctionOutput } from './tensor/recorder.ts';
export { keep, liveBytes, liveTensors, Scope, scope, unscoped } from './tensor/scope.ts';
export {
  type CommonTensorOptions,
  commonTensor,
  forgetCommonTensors,
  freeStorage,
  lendStorage,
} from './tensor/storage.ts';
export * from './tensor/tensor.ts';
export type * from './tensor/types.ts';
