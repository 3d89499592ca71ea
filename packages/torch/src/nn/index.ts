/** @file `nn`: modules, losses, initialisation and what belongs to them. */

export type { Size } from '../base/options.ts';
export type { FactoryOptions } from './factory.ts';
export * as functional from './functional/index.ts';
export type { BackwardHook, BackwardPreHook, ForwardHook, ForwardPreHook, HookHandle } from './hooks.ts';
export * as init from './init.ts';
export { type Members, Module, type TensorModule, type WalkOptions } from './module.ts';
export * from './modules/activation.ts';
export * from './modules/adaptive-softmax.ts';
export * from './modules/attention.ts';
export * from './modules/batchnorm.ts';
export * from './modules/containers.ts';
export * from './modules/conv.ts';
export * from './modules/dropout.ts';
export * from './modules/embedding.ts';
export * from './modules/lazy.ts';
export { type BiasOptions, Bilinear, Identity, Linear } from './modules/linear.ts';
export * from './modules/linear-cross-entropy.ts';
export * from './modules/loss.ts';
export {
  GroupNorm,
  type GroupNormOptions,
  LayerNorm,
  type LayerNormOptions,
  LocalResponseNorm,
  RMSNorm,
  type RMSNormOptions,
} from './modules/normalization.ts';
export * from './modules/padding.ts';
export * from './modules/parameter-containers.ts';
export * from './modules/pooling.ts';
export { GRU, type Hidden, LSTM, RNN, type RNNOptions } from './modules/rnn.ts';
export * from './modules/rnn-cell.ts';
export * from './modules/sync-batch-norm.ts';
export * from './modules/transformer.ts';
export {
  type DrawOptions,
  type InitializeOptions,
  NamedRandom,
  type NamedRandomState,
  type NamesInWhole,
} from './named-random.ts';
export { Buffer, Parameter } from './parameter.ts';
export * from './shape.ts';
export type { LoadOptions, LoadResult, StateDict, StateSource } from './state-dict.ts';
export * as utils from './utils.ts';
