/** @file `nn.functional`: what modules compute, without the modules. */

export { bilinear, cosineSimilarity, linear, oneHot, pairwiseDistance, pdist } from '../../generated/functions.ts';
export * from './activation.ts';
export * from './attention.ts';
export * from './convolution.ts';
export * from './dropout.ts';
export * from './embedding.ts';
export * from './linear-cross-entropy.ts';
export * from './loss.ts';
export * from './normalization.ts';
export * from './pooling.ts';
export * from './vision.ts';
