/** @file One cycle: up to a large rate, down to a tiny one, with the momentum the other way round. */
import { TorchError } from '../../base/errors.ts';
import { readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import { type AnyOptimizer, LRScheduler, numberPerGroup, type ScheduleOptions, setMomentum } from './lr-scheduler.ts';

/** What OneCycleLR can be told; `totalSteps`, or `epochs` and `stepsPerEpoch`, must be. */
export interface OneCycleOptions extends ScheduleOptions {
  totalSteps?: number | null | undefined;
  epochs?: number | null | undefined;
  stepsPerEpoch?: number | null | undefined;
  /** The share of steps that go up. */
  pctStart?: Real | undefined;
  annealStrategy?: 'cos' | 'linear' | undefined;
  cycleMomentum?: boolean | undefined;
  baseMomentum?: number | readonly number[] | undefined;
  maxMomentum?: number | readonly number[] | undefined;
  /** The largest rate divided by the first, and the first by the last. */
  divFactor?: Real | undefined;
  finalDivFactor?: Real | undefined;
  threePhase?: boolean | undefined;
}

/** Names of what is kept per group. */
type Bound = 'first' | 'max' | 'min' | 'maxMomentum' | 'baseMomentum';

interface Phase {
  readonly end: number;
  readonly rate: readonly [Bound, Bound];
  readonly momentum: readonly [Bound, Bound];
}

/** One cycle of rates (and momenta). @example new OneCycleLR(optimizer, 0.1, { totalSteps: 1000 }) */
export class OneCycleLR extends LRScheduler {
  readonly totalSteps: number;
  private readonly phases: readonly Phase[];
  private readonly isCosine: boolean;
  private readonly cycleMomentum: boolean;
  private readonly bounds: Record<Bound, number>[];

  constructor(optimizer: AnyOptimizer, maxLr: number | readonly number[], options: OneCycleOptions) {
    const given = readOptions('OneCycleLR', options, {
      totalSteps: null as number | null,
      epochs: null as number | null,
      stepsPerEpoch: null as number | null,
      pctStart: 0.3,
      annealStrategy: 'cos',
      cycleMomentum: true,
      baseMomentum: null as number | readonly number[] | null,
      maxMomentum: null as number | readonly number[] | null,
      divFactor: 25,
      finalDivFactor: 1e4,
      threePhase: false,
      lastEpoch: -1,
    });
    super(optimizer, given.lastEpoch);
    const steps = given.totalSteps ?? (given.epochs ?? NaN) * (given.stepsPerEpoch ?? NaN);
    if (!Number.isInteger(steps) || steps <= 0)
      throw new TorchError(
        'MISSING_ARGUMENT',
        `OneCycleLR: give totalSteps, or epochs and stepsPerEpoch, as whole numbers above 0, got ${steps}`,
      );
    if (!(given.pctStart >= 0 && given.pctStart <= 1))
      throw new TorchError('BAD_ARGUMENT', `OneCycleLR: pctStart must be between 0 and 1, got ${given.pctStart}`);
    if (given.annealStrategy !== 'cos' && given.annealStrategy !== 'linear')
      throw new TorchError(
        'BAD_ARGUMENT',
        `OneCycleLR: annealStrategy is 'cos' or 'linear', got '${given.annealStrategy}'`,
      );
    this.totalSteps = steps;
    this.isCosine = given.annealStrategy === 'cos';
    this.cycleMomentum = given.cycleMomentum;
    this.phases = phasesOf(given.pctStart, steps, given.threePhase);
    const largest = numberPerGroup('OneCycleLR: maxLr', optimizer, maxLr);
    const high = numberPerGroup('OneCycleLR: maxMomentum', optimizer, given.maxMomentum ?? 0.95);
    const low = numberPerGroup('OneCycleLR: baseMomentum', optimizer, given.baseMomentum ?? 0.85);
    if (this.cycleMomentum && !('momentum' in optimizer.defaults) && !('betas' in optimizer.defaults)) {
      throw new TorchError(
        'BAD_ARGUMENT',
        'OneCycleLR: the optimizer has neither momentum nor betas; pass { cycleMomentum: false }',
      );
    }
    this.bounds = optimizer.paramGroups.map((group, i) => {
      const first = given.lastEpoch === -1 ? largest[i]! / given.divFactor : (group.initialLr ?? NaN);
      if (given.lastEpoch === -1) group.initialLr = first;
      return {
        first,
        max: largest[i]!,
        min: first / given.finalDivFactor,
        maxMomentum: high[i]!,
        baseMomentum: low[i]!,
      };
    });
    this.begin();
  }

  protected getLr(): number[] {
    const step = this.lastEpoch;
    if (step > this.totalSteps)
      throw new TorchError(
        'BAD_ARGUMENT',
        `OneCycleLR: step ${step} is beyond totalSteps (${this.totalSteps}); make the cycle longer, or stop calling step()`,
      );
    const number = this.phases.findIndex((phase, i) => step <= phase.end || i === this.phases.length - 1);
    const phase = this.phases[number]!;
    const start = number === 0 ? 0 : this.phases[number - 1]!.end;
    const share = (step - start) / (phase.end - start);
    return this.bounds.map((bounds, i) => {
      if (this.cycleMomentum)
        setMomentum(this.optimizer, i, this.between(bounds[phase.momentum[0]], bounds[phase.momentum[1]], share));
      return this.between(bounds[phase.rate[0]], bounds[phase.rate[1]], share);
    });
  }

  private between(start: number, end: number, share: number): number {
    if (!this.isCosine) return (end - start) * share + start;
    return end + ((start - end) / 2) * (Math.cos(Math.PI * share) + 1);
  }
}

function phasesOf(share: number, steps: number, isThree: boolean): readonly Phase[] {
  const up: Phase = { end: share * steps - 1, rate: ['first', 'max'], momentum: ['maxMomentum', 'baseMomentum'] };
  if (!isThree) return [up, { end: steps - 1, rate: ['max', 'min'], momentum: ['baseMomentum', 'maxMomentum'] }];
  return [
    up,
    { end: 2 * share * steps - 2, rate: ['max', 'first'], momentum: ['baseMomentum', 'maxMomentum'] },
    { end: steps - 1, rate: ['first', 'min'], momentum: ['maxMomentum', 'maxMomentum'] },
  ];
}
