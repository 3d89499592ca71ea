/** @file Training that survives the loss of ranks. */
export type { Stateful, StateObject, TrainState } from './state.ts';
export { type LoopCheckpoints, type TrainLoopOptions, trainLoop } from './train-loop.ts';
