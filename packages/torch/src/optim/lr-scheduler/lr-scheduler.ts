/**
 * @file The base of learning-rate schedules. Like PyTorch's, a schedule sets the rate of every group when it is made and
 * again at every `step()`, from the rate before, so that schedules can be combined.
 */
import { checkGiven } from '../../base/checks.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { FloatScalar } from '../../base/float-scalar.ts';
import { checkWhole } from '../../base/options.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { Optimizer } from '../optimizer.ts';
import type { ParamGroup } from '../param-group.ts';

/** Any optimizer. */
export type AnyOptimizer = Pick<Optimizer, 'paramGroups' | 'defaults'>;

/** Where a schedule goes on: the number of the last step, or -1 to begin. */
export interface ScheduleOptions {
  lastEpoch?: number | undefined;
}

/** What a schedule remembers: plain values. */
export type ScheduleState = Record<string, unknown>;

/** The base of learning-rate schedules. @example const schedule = new StepLR(optimizer, 30); schedule.step() */
export abstract class LRScheduler {
  readonly optimizer: AnyOptimizer;
  lastEpoch: number;
  protected baseLrs: number[] = [];
  protected lastLr: number[] = [];
  protected isInitial = false;
  protected stepCount = 0;

  constructor(optimizer: AnyOptimizer, lastEpoch: number) {
    if (!(optimizer instanceof Optimizer))
      throw new TorchError('BAD_ARGUMENT', `${new.target.name}: the first argument is an optimizer`);
    checkWhole(`${new.target.name}: lastEpoch`, lastEpoch, -1);
    this.optimizer = optimizer;
    this.lastEpoch = lastEpoch;
  }

  /** Sets the rates to begin with: the last thing a constructor does. */
  protected begin(): void {
    this.optimizer.paramGroups.forEach((group, i) => {
      if (this.lastEpoch === -1) group.initialLr ??= rateOf(group);
      else if (group.initialLr === undefined) {
        throw new TorchError(
          'BAD_ARGUMENT',
          `${this.constructor.name}: group ${i} has no initialLr, so lastEpoch (${this.lastEpoch}) cannot be resumed; load the optimizer's state first, or leave lastEpoch out`,
        );
      }
    });
    this.baseLrs = this.optimizer.paramGroups.map((group) => group.initialLr!);
    this.initialStep();
  }

  /** Sets the rates of the first step. */
  initialStep(): void {
    this.stepCount = 0;
    this.isInitial = true;
    try {
      this.step();
    } finally {
      this.isInitial = false;
    }
  }

  /** The rates of this step, from those before. */
  protected abstract getLr(): number[];

  /** The rates of this step from the first ones, where there is a formula. */
  protected closedForm(): number[] {
    return this.getLr();
  }

  /** The rates of all groups as they were set last. */
  getLastLr(): number[] {
    return [...this.lastLr];
  }

  /** Sets the rates of the next step. Call it after `optimizer.step()`. */
  step(): void {
    this.stepCount++;
    this.lastEpoch++;
    this.apply(this.getLr());
  }

  /** Goes to a step directly. */
  restart(epoch: number): void {
    checkGiven(`${this.constructor.name}.restart`, Number.isFinite(epoch), ['the epoch', epoch], 'a number');
    this.lastEpoch = epoch;
    this.apply(this.closedForm());
  }

  /** Sets rates. Groups beyond those, added after the schedule was made, are left alone. */
  protected apply(rates: readonly number[]): void {
    rates.forEach((rate, i) => checkNumber(this.constructor.name, `the rate of group ${i}`, rate));
    this.optimizer.paramGroups.slice(0, rates.length).forEach((group, i) => setRate(group, rates[i]!));
    this.lastLr = this.rates();
  }

  /** The rates of all groups now. */
  protected rates(): number[] {
    return this.optimizer.paramGroups.map(rateOf);
  }

  /** The rates now of the groups that were there when the schedule was made. */
  protected knownRates(): number[] {
    return this.rates().slice(0, this.baseLrs.length);
  }

  /** Everything needed to go on later, except functions. */
  stateDict(): ScheduleState {
    return Object.fromEntries(
      Object.entries(this).filter(([key, value]) => key !== 'optimizer' && key !== 'isInitial' && isPlain(value)),
    );
  }

  /** Goes on where `stateDict` was taken. */
  loadStateDict(state: ScheduleState): void {
    const known = Object.keys(this.stateDict());
    checkOptions(`${this.constructor.name}.loadStateDict`, state, known);
    checkGroups(this.constructor.name, state['baseLrs'], [this.baseLrs.length]);
    Object.assign(this, structuredClone(state));
  }
}

/** Refuses a state whose rates are those of another number of groups. */
export function checkGroups(where: string, saved: unknown, counts: readonly number[]): void {
  if (!Array.isArray(saved) || counts.includes(saved.length)) return;
  throw new TorchError(
    'STATE_DICT',
    `${where}.loadStateDict: the state is of ${saved.length} groups, this schedule was made for ${counts[0]}; make the optimizer with the groups it had then`,
  );
}

function isPlain(value: unknown): boolean {
  if (typeof value === 'function') return false;
  return !Array.isArray(value) || value.every((item) => typeof item === 'number' || Array.isArray(item));
}

/** The rate of a group as a number. */
export function rateOf(group: ParamGroup<{ lr: number | Tensor; maximize: boolean }>): number {
  return group.lr instanceof Tensor ? group.lr.item() : group.lr;
}

/** Sets the rate of a group; a tensor is filled in place. */
export function setRate(group: ParamGroup<{ lr: number | Tensor; maximize: boolean }>, rate: number): void {
  if (group.lr instanceof Tensor) group.lr.fill_(new FloatScalar(rate));
  else group.lr = rate;
}

/** Sets the momentum of a group, or the first of its betas; a group that is no longer there is left out. */
export function setMomentum({ paramGroups }: AnyOptimizer, index: number, momentum: number): void {
  const group: Record<string, unknown> | undefined = paramGroups[index];
  if (group === undefined) return;
  if (Array.isArray(group['betas'])) group['betas'] = [momentum, ...(group['betas'] as number[]).slice(1)];
  else group['momentum'] = momentum;
}

/** Refuses what is no number, such as what a function of the user's gave. */
export function checkNumber(where: string, name: string, value: unknown): void {
  checkGiven(where, typeof value === 'number' && !Number.isNaN(value), [name, value], 'a number');
}

/** What a function gives for a step, which must be a number. */
export function factorOf(where: string, of: (at: number) => number, at: number): number {
  const factor: unknown = of(at);
  checkNumber(where, `the result for step ${at}`, factor);
  return factor as number;
}

/** One number per group. */
export function numberPerGroup(where: string, optimizer: AnyOptimizer, value: number | readonly number[]): number[] {
  const numbers = perGroup(where, optimizer, value);
  for (const number of numbers) checkGiven(where, Number.isFinite(number), ['a value', number], 'a number');
  return numbers;
}

/** One value per group. */
export function perGroup<T>(where: string, optimizer: AnyOptimizer, value: T | readonly T[]): T[] {
  const count = optimizer.paramGroups.length;
  if (!Array.isArray(value)) return new Array<T>(count).fill(value as T);
  if (value.length === count) return [...(value as readonly T[])];
  throw new TorchError(
    'BAD_ARGUMENT',
    `${where}: ${value.length} values were given, the optimizer has ${count} groups; give one value, or one per group`,
  );
}
