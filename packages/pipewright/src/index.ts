/** @file Pipeline-parallel training and inference: microbatches, stages, the runtime, the graph front end, launching. */
export * from './errors.ts';
export * from './graph/index.ts';
export * from './launch/index.ts';
export * from './microbatch/index.ts';
export * from './runtime/index.ts';
export * from './stage/index.ts';
export * as tree from './tree.ts';
