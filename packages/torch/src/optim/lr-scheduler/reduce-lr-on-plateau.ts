/** @file A smaller rate when a measure stops getting better. */
import { checkGiven } from '../../base/checks.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import { Tensor } from '../../tensor/tensor.ts';
import { Optimizer } from '../optimizer.ts';
import { type AnyOptimizer, checkGroups, numberPerGroup, rateOf, type ScheduleState, setRate } from './lr-scheduler.ts';

/** What ReduceLROnPlateau can be told. */
export interface PlateauOptions {
  /** Whether smaller or larger measures are better. */
  mode?: 'min' | 'max' | undefined;
  factor?: Real | undefined;
  /** How many steps without getting better are allowed. */
  patience?: number | undefined;
  threshold?: Real | undefined;
  thresholdMode?: 'rel' | 'abs' | undefined;
  cooldown?: number | undefined;
  minLr?: number | readonly number[] | undefined;
  eps?: Real | undefined;
}

/** Multiplies the rate by `factor` when a measure stops getting better. @example schedule.step(validationLoss) */
export class ReduceLROnPlateau {
  readonly optimizer: AnyOptimizer;
  readonly mode: string;
  readonly factor: number;
  readonly patience: number;
  readonly threshold: number;
  readonly thresholdMode: string;
  readonly cooldown: number;
  readonly minLrs: readonly number[];
  readonly eps: number;
  lastEpoch = 0;
  best: number;
  numBadEpochs = 0;
  cooldownCounter = 0;
  private lastLr: number[];

  constructor(optimizer: AnyOptimizer, options?: PlateauOptions) {
    if (!(optimizer instanceof Optimizer))
      throw new TorchError('BAD_ARGUMENT', 'ReduceLROnPlateau: the first argument is an optimizer');
    const given = readOptions('ReduceLROnPlateau', options, {
      mode: 'min',
      factor: 0.1,
      patience: 10,
      threshold: 1e-4,
      thresholdMode: 'rel',
      cooldown: 0,
      minLr: null as number | readonly number[] | null,
      eps: 1e-8,
    });
    if (!(given.factor < 1))
      throw new TorchError('BAD_ARGUMENT', `ReduceLROnPlateau: factor must be less than 1, got ${given.factor}`);
    if (given.mode !== 'min' && given.mode !== 'max')
      throw new TorchError('BAD_ARGUMENT', `ReduceLROnPlateau: mode is 'min' or 'max', got '${given.mode}'`);
    if (given.thresholdMode !== 'rel' && given.thresholdMode !== 'abs')
      throw new TorchError(
        'BAD_ARGUMENT',
        `ReduceLROnPlateau: thresholdMode is 'rel' or 'abs', got '${given.thresholdMode}'`,
      );
    this.optimizer = optimizer;
    this.mode = given.mode;
    this.factor = given.factor;
    this.patience = given.patience;
    this.threshold = given.threshold;
    this.thresholdMode = given.thresholdMode;
    this.cooldown = given.cooldown;
    this.minLrs = numberPerGroup('ReduceLROnPlateau: minLr', optimizer, given.minLr ?? 0);
    this.eps = given.eps;
    this.best = given.mode === 'min' ? Infinity : -Infinity;
    this.lastLr = optimizer.paramGroups.map(rateOf);
  }

  /** Takes the measure of this step. */
  step(metric: number | Tensor): void {
    const current = metric instanceof Tensor ? metric.item() : metric;
    checkGiven('ReduceLROnPlateau.step', typeof (current as unknown) === 'number', ['the metric', current], 'a number');
    this.lastEpoch++;
    if (this.isBetter(current)) {
      this.best = current;
      this.numBadEpochs = 0;
    } else this.numBadEpochs++;
    if (this.cooldownCounter > 0) {
      this.cooldownCounter--;
      this.numBadEpochs = 0;
    }
    if (this.numBadEpochs > this.patience) {
      this.reduce();
      this.cooldownCounter = this.cooldown;
      this.numBadEpochs = 0;
    }
    this.lastLr = this.optimizer.paramGroups.map(rateOf);
  }

  private isBetter(value: number): boolean {
    const { best, threshold, mode } = this;
    if (this.thresholdMode === 'rel')
      return mode === 'min' ? value < best * (1 - threshold) : value > best * (threshold + 1);
    return mode === 'min' ? value < best - threshold : value > best + threshold;
  }

  private reduce(): void {
    this.optimizer.paramGroups.forEach((group, i) => {
      const before = rateOf(group);
      const after = Math.max(before * this.factor, this.minLrs[i] ?? 0);
      if (before - after > this.eps) setRate(group, after);
    });
  }

  /** The rates of all groups as they were set last. */
  getLastLr(): number[] {
    return [...this.lastLr];
  }

  /** Everything needed to go on later. */
  stateDict(): ScheduleState {
    const { lastEpoch, best, numBadEpochs, cooldownCounter, lastLr } = this;
    return { lastEpoch, best, numBadEpochs, cooldownCounter, lastLr: [...lastLr] };
  }

  /** Goes on where `stateDict` was taken. */
  loadStateDict(state: ScheduleState): void {
    checkOptions('ReduceLROnPlateau.loadStateDict', state, Object.keys(this.stateDict()));
    checkGroups('ReduceLROnPlateau', state['lastLr'], [this.optimizer.paramGroups.length, this.lastLr.length]);
    Object.assign(this, structuredClone(state));
  }
}
