/** @file `optim`: optimizers and learning-rate schedules. */
export * from './adadelta.ts';
export * from './adafactor.ts';
export * from './adagrad.ts';
export * from './adam.ts';
export * from './adamax.ts';
export * from './asgd.ts';
export * from './lr-scheduler/cosine-annealing-warm-restarts.ts';
export * from './lr-scheduler/cyclic-lr.ts';
export { LRScheduler, type ScheduleOptions, type ScheduleState } from './lr-scheduler/lr-scheduler.ts';
export * from './lr-scheduler/one-cycle-lr.ts';
export * from './lr-scheduler/reduce-lr-on-plateau.ts';
export * from './lr-scheduler/schedules.ts';
export * from './lr-scheduler/sequential-lr.ts';
export * from './muon.ts';
export * from './nadam.ts';
export {
  type BaseOptions,
  type GivenOptions,
  type GroupInput,
  Optimizer,
  type ParamGroup,
  type ParamsInput,
} from './optimizer.ts';
export type { OptimizerState } from './optimizer-state.ts';
export * from './radam.ts';
export * from './rmsprop.ts';
export * from './rprop.ts';
export * from './sgd.ts';
