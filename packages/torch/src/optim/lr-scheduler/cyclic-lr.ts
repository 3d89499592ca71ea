/** @file Up and down between two rates for ever, with the momentum the other way round. */
import { TorchError } from '../../base/errors.ts';
import { readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import {
  type AnyOptimizer,
  factorOf,
  LRScheduler,
  numberPerGroup,
  type ScheduleOptions,
  setMomentum,
  setRate,
} from './lr-scheduler.ts';

/** What CyclicLR can be told. */
export interface CyclicOptions extends ScheduleOptions {
  /** Steps that go up, and down; as many where the second is left out. */
  stepSizeUp?: number | undefined;
  stepSizeDown?: number | null | undefined;
  /** How the swing changes: not at all, halved every cycle, or by `gamma` every step. */
  mode?: 'triangular' | 'triangular2' | 'exp_range' | undefined;
  gamma?: Real | undefined;
  /** Another change of the swing, by the number of the cycle or of the step. */
  scaleFn?: ((at: number) => number) | null | undefined;
  scaleMode?: 'cycle' | 'iterations' | undefined;
  cycleMomentum?: boolean | undefined;
  baseMomentum?: number | readonly number[] | undefined;
  maxMomentum?: number | readonly number[] | undefined;
}

/** Between a low and a high rate and back. @example new CyclicLR(optimizer, 0.01, 0.1, { stepSizeUp: 200 }) */
export class CyclicLR extends LRScheduler {
  readonly mode: string;
  private readonly maxLrs: number[];
  private readonly totalSize: number;
  private readonly stepRatio: number;
  private readonly cycleMomentum: boolean;
  private readonly baseMomentums: number[];
  private readonly maxMomentums: number[];
  private readonly scale: (cycle: number, step: number) => number;

  constructor(
    optimizer: AnyOptimizer,
    baseLr: number | readonly number[],
    maxLr: number | readonly number[],
    options?: CyclicOptions,
  ) {
    const given = readOptions('CyclicLR', options, {
      stepSizeUp: 2000,
      stepSizeDown: null as number | null,
      mode: 'triangular',
      gamma: 1,
      scaleFn: null as ((at: number) => number) | null,
      scaleMode: 'cycle',
      cycleMomentum: true,
      baseMomentum: null as number | readonly number[] | null,
      maxMomentum: null as number | readonly number[] | null,
      lastEpoch: -1,
    });
    super(optimizer, given.lastEpoch);
    const low = numberPerGroup('CyclicLR: baseLr', optimizer, baseLr);
    if (given.lastEpoch === -1) optimizer.paramGroups.forEach((group, i) => setRate(group, low[i]!));
    this.maxLrs = numberPerGroup('CyclicLR: maxLr', optimizer, maxLr);
    const down = given.stepSizeDown ?? given.stepSizeUp;
    this.totalSize = given.stepSizeUp + down;
    this.stepRatio = given.stepSizeUp / this.totalSize;
    if (!(given.stepSizeUp > 0 && down > 0))
      throw new TorchError(
        'BAD_ARGUMENT',
        `CyclicLR: stepSizeUp and stepSizeDown must be above 0, got ${given.stepSizeUp} and ${down}`,
      );
    this.mode = given.mode;
    this.scale = scaleOf(given);
    this.cycleMomentum = given.cycleMomentum;
    const { defaults } = optimizer;
    if (given.cycleMomentum && !('momentum' in defaults) && !('betas' in defaults))
      throw new TorchError(
        'BAD_ARGUMENT',
        'CyclicLR: the optimizer has neither momentum nor betas; pass { cycleMomentum: false }',
      );
    this.baseMomentums = numberPerGroup('CyclicLR: baseMomentum', optimizer, given.baseMomentum ?? 0.8);
    this.maxMomentums = numberPerGroup('CyclicLR: maxMomentum', optimizer, given.maxMomentum ?? 0.9);
    if (given.cycleMomentum && given.lastEpoch === -1)
      this.maxMomentums.forEach((momentum, i) => setMomentum(optimizer, i, momentum));
    this.begin();
    this.baseLrs = low; // the rate that the optimizer began with is left to other schedules
  }

  protected getLr(): number[] {
    const cycle = Math.floor(1 + this.lastEpoch / this.totalSize);
    const within = 1 + this.lastEpoch / this.totalSize - cycle;
    const share = within <= this.stepRatio ? within / this.stepRatio : (within - 1) / (this.stepRatio - 1);
    const scale = this.scale(cycle, this.lastEpoch);
    if (this.cycleMomentum)
      this.maxMomentums.forEach((high, i) => {
        setMomentum(this.optimizer, i, high - (high - this.baseMomentums[i]!) * share * scale);
      });
    return this.baseLrs.map((low, i) => low + (this.maxLrs[i]! - low) * share * scale);
  }
}

function scaleOf(given: {
  mode: string;
  gamma: number;
  scaleFn: ((at: number) => number) | null;
  scaleMode: string;
}): (cycle: number, step: number) => number {
  const { scaleFn, scaleMode, gamma } = given;
  if (scaleFn !== null)
    return (cycle, step) => factorOf('CyclicLR: scaleFn', scaleFn, scaleMode === 'cycle' ? cycle : step);
  switch (given.mode) {
    case 'triangular':
      return () => 1;
    case 'triangular2':
      return (cycle) => 1 / 2 ** (cycle - 1);
    case 'exp_range':
      return (_, step) => gamma ** step;
    default:
      throw new TorchError(
        'BAD_ARGUMENT',
        `CyclicLR: mode is 'triangular', 'triangular2' or 'exp_range', got '${given.mode}'; or pass scaleFn`,
      );
  }
}
