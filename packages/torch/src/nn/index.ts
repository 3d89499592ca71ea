/** @file `nn`: modules, losses, initialisation and what belongs to them. */
export * from './activation.ts';
export * from './adaptive-softmax.ts';
export * from './attention.ts';
export * from './batchnorm.ts';
export * from './containers.ts';
export * from './conv.ts';
export * from './dropout.ts';
export * from './embedding.ts';
export * as functional from './functional/index.ts';
export type { BackwardHook, BackwardPreHook, ForwardHook, ForwardPreHook, HookHandle } from './hooks.ts';
export * as init from './init.ts';
export * from './lazy.ts';
export { type BiasOptions, Bilinear, Identity, Linear } from './linear.ts';
export * from './linear-cross-entropy.ts';
export * from './loss.ts';
export { type Members, Module, type TensorModule, type WalkOptions } from './module.ts';
export {
  GroupNorm,
  type GroupNormOptions,
  LayerNorm,
  type LayerNormOptions,
  LocalResponseNorm,
  RMSNorm,
  type RMSNormOptions,
} from './normalization.ts';
export type { FactoryOptions, Size } from './options.ts';
export * from './padding.ts';
export { Buffer, Parameter } from './parameter.ts';
export * from './parameter-containers.ts';
export * from './pooling.ts';
export { GRU, type Hidden, LSTM, RNN, type RNNOptions } from './rnn.ts';
export * from './rnn-cell.ts';
export * from './shape.ts';
export type { LoadOptions, LoadResult, StateDict, StateSource } from './state-dict.ts';
export * from './sync-batch-norm.ts';
export * from './transformer.ts';
export * as utils from './utils.ts';
