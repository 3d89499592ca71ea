/** @file Learning-rate schedules that depend on the number of the step alone. */
import { checkFunction, checkGiven } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import { type AnyOptimizer, factorOf, LRScheduler, perGroup, type ScheduleOptions } from './lr-scheduler.ts';

/** The rate times a function of the step's number. @example new LambdaLR(optimizer, (step) => 0.95 ** step) */
export class LambdaLR extends LRScheduler {
  private readonly lambdas: ((epoch: number) => number)[];

  constructor(
    optimizer: AnyOptimizer,
    lrLambda: ((epoch: number) => number) | readonly ((epoch: number) => number)[],
    options?: ScheduleOptions,
  ) {
    super(optimizer, readOptions('LambdaLR', options, { lastEpoch: -1 }).lastEpoch);
    this.lambdas = perGroup('LambdaLR: lrLambda', optimizer, lrLambda);
    for (const lambda of this.lambdas) checkFunction('LambdaLR', lambda, 'lrLambda');
    this.begin();
  }

  protected getLr(): number[] {
    return this.baseLrs.map((rate, i) => rate * factorOf('LambdaLR: lrLambda', this.lambdas[i]!, this.lastEpoch));
  }
}

/** The rate before times a function of the step's number. */
export class MultiplicativeLR extends LRScheduler {
  private readonly lambdas: ((epoch: number) => number)[];

  constructor(
    optimizer: AnyOptimizer,
    lrLambda: ((epoch: number) => number) | readonly ((epoch: number) => number)[],
    options?: ScheduleOptions,
  ) {
    super(optimizer, readOptions('MultiplicativeLR', options, { lastEpoch: -1 }).lastEpoch);
    this.lambdas = perGroup('MultiplicativeLR: lrLambda', optimizer, lrLambda);
    for (const lambda of this.lambdas) checkFunction('MultiplicativeLR', lambda, 'lrLambda');
    this.begin();
  }

  protected getLr(): number[] {
    return this.isInitial
      ? this.rates()
      : this.knownRates().map(
          (rate, i) => rate * factorOf('MultiplicativeLR: lrLambda', this.lambdas[i]!, this.lastEpoch),
        );
  }
}

/** Times gamma every `stepSize` steps. */
export class StepLR extends LRScheduler {
  readonly stepSize: number;
  readonly gamma: number;

  constructor(optimizer: AnyOptimizer, stepSize: number, options?: ScheduleOptions & { gamma?: Real | undefined }) {
    const given = readOptions('StepLR', options, { gamma: 0.1, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    checkWhole('StepLR: stepSize', stepSize, 1);
    this.stepSize = stepSize;
    this.gamma = given.gamma;
    this.begin();
  }

  protected getLr(): number[] {
    if (this.lastEpoch === 0 || this.lastEpoch % this.stepSize !== 0) return this.rates();
    return this.rates().map((rate) => rate * this.gamma);
  }

  protected override closedForm(): number[] {
    return this.baseLrs.map((rate) => rate * this.gamma ** Math.floor(this.lastEpoch / this.stepSize));
  }
}

/** Times gamma at each milestone. */
export class MultiStepLR extends LRScheduler {
  readonly milestones: readonly number[];
  readonly gamma: number;

  constructor(
    optimizer: AnyOptimizer,
    milestones: readonly number[],
    options?: ScheduleOptions & { gamma?: Real | undefined },
  ) {
    const given = readOptions('MultiStepLR', options, { gamma: 0.1, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    const areWhole = Array.isArray(milestones) && milestones.every((milestone) => Number.isInteger(milestone));
    checkGiven('MultiStepLR', areWhole, ['milestones', milestones], 'an array of whole numbers');
    this.milestones = [...milestones].sort((a, b) => a - b);
    this.gamma = given.gamma;
    this.begin();
  }

  protected getLr(): number[] {
    const times = this.milestones.filter((milestone) => milestone === this.lastEpoch).length;
    return times === 0 ? this.rates() : this.rates().map((rate) => rate * this.gamma ** times);
  }

  protected override closedForm(): number[] {
    const passed = this.milestones.filter((milestone) => milestone <= this.lastEpoch).length;
    return this.baseLrs.map((rate) => rate * this.gamma ** passed);
  }
}

/** A smaller rate for the first `totalIters` steps. */
export class ConstantLR extends LRScheduler {
  readonly factor: number;
  readonly totalIters: number;

  constructor(
    optimizer: AnyOptimizer,
    options?: ScheduleOptions & { factor?: Real | undefined; totalIters?: number | undefined },
  ) {
    const given = readOptions('ConstantLR', options, { factor: 1 / 3, totalIters: 5, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    checkFactor('ConstantLR: factor', given.factor, 0);
    this.factor = given.factor;
    checkWhole('ConstantLR: totalIters', given.totalIters);
    this.totalIters = given.totalIters;
    this.begin();
  }

  protected getLr(): number[] {
    if (this.lastEpoch === 0) return this.rates().map((rate) => rate * this.factor);
    return this.lastEpoch === this.totalIters ? this.rates().map((rate) => rate * (1 / this.factor)) : this.rates();
  }

  protected override closedForm(): number[] {
    const over = Number(this.lastEpoch >= this.totalIters);
    return this.baseLrs.map((rate) => rate * (this.factor + over * (1 - this.factor)));
  }
}

function checkFactor(where: string, factor: number, least: number): void {
  if (!(factor <= 1 && factor >= least))
    throw new TorchError('BAD_ARGUMENT', `${where} must be between 0 and 1, got ${factor}`);
}

/** Linear from one factor to another over `totalIters` steps: a warm-up. @example new LinearLR(optimizer, { startFactor: 0.01, totalIters: 100 }) */
export class LinearLR extends LRScheduler {
  readonly startFactor: number;
  readonly endFactor: number;
  readonly totalIters: number;

  constructor(
    optimizer: AnyOptimizer,
    options?: ScheduleOptions & {
      startFactor?: Real | undefined;
      endFactor?: Real | undefined;
      totalIters?: number | undefined;
    },
  ) {
    const given = readOptions('LinearLR', options, { startFactor: 1 / 3, endFactor: 1, totalIters: 5, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    checkFactor('LinearLR: startFactor', given.startFactor, Number.MIN_VALUE);
    checkFactor('LinearLR: endFactor', given.endFactor, 0);
    this.startFactor = given.startFactor;
    this.endFactor = given.endFactor;
    checkWhole('LinearLR: totalIters', given.totalIters);
    this.totalIters = given.totalIters;
    this.begin();
  }

  protected getLr(): number[] {
    const { startFactor, endFactor, totalIters, lastEpoch } = this;
    if (lastEpoch === 0) return this.rates().map((rate) => rate * startFactor);
    if (this.isInitial || lastEpoch > totalIters) return this.rates();
    const rise = endFactor - startFactor;
    return this.rates().map((rate) => rate * (1 + rise / (totalIters * startFactor + (lastEpoch - 1) * rise)));
  }

  protected override closedForm(): number[] {
    const { startFactor, endFactor, totalIters, lastEpoch } = this;
    return this.baseLrs.map(
      (rate) => rate * (startFactor + ((endFactor - startFactor) * Math.min(totalIters, lastEpoch)) / totalIters),
    );
  }
}

/** Times gamma at every step. */
export class ExponentialLR extends LRScheduler {
  readonly gamma: number;

  constructor(optimizer: AnyOptimizer, gamma: number, options?: ScheduleOptions) {
    super(optimizer, readOptions('ExponentialLR', options, { lastEpoch: -1 }).lastEpoch);
    checkGiven('ExponentialLR', Number.isFinite(gamma), ['gamma', gamma], 'a number');
    this.gamma = gamma;
    this.begin();
  }

  protected getLr(): number[] {
    return this.isInitial ? this.rates() : this.rates().map((rate) => rate * this.gamma);
  }

  protected override closedForm(): number[] {
    return this.baseLrs.map((rate) => rate * this.gamma ** this.lastEpoch);
  }
}

/** To zero over `totalIters` steps along a polynomial. */
export class PolynomialLR extends LRScheduler {
  readonly totalIters: number;
  readonly power: number;

  constructor(
    optimizer: AnyOptimizer,
    options?: ScheduleOptions & { totalIters?: number | undefined; power?: Real | undefined },
  ) {
    const given = readOptions('PolynomialLR', options, { totalIters: 5, power: 1, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    checkWhole('PolynomialLR: totalIters', given.totalIters);
    this.totalIters = given.totalIters;
    this.power = given.power;
    this.begin();
  }

  protected getLr(): number[] {
    const { totalIters, power, lastEpoch } = this;
    if (this.isInitial || lastEpoch > totalIters) return this.rates();
    const decay = ((1 - lastEpoch / totalIters) / (1 - (lastEpoch - 1) / totalIters)) ** power;
    return this.rates().map((rate) => rate * decay);
  }

  protected override closedForm(): number[] {
    const left = 1 - Math.min(this.totalIters, this.lastEpoch) / this.totalIters;
    return this.baseLrs.map((rate) => rate * left ** this.power);
  }
}

/** Along half a cosine to `etaMin` over `tMax` steps. @example new CosineAnnealingLR(optimizer, 1000, { etaMin: 1e-5 }) */
export class CosineAnnealingLR extends LRScheduler {
  readonly tMax: number;
  readonly etaMin: number;

  constructor(optimizer: AnyOptimizer, tMax: number, options?: ScheduleOptions & { etaMin?: Real | undefined }) {
    const given = readOptions('CosineAnnealingLR', options, { etaMin: 0, lastEpoch: -1 });
    super(optimizer, given.lastEpoch);
    checkGiven('CosineAnnealingLR', Number.isFinite(tMax) && tMax > 0, ['tMax', tMax], 'a number above 0');
    this.tMax = tMax;
    this.etaMin = given.etaMin;
    this.begin();
  }

  protected getLr(): number[] {
    const { tMax, etaMin, lastEpoch } = this;
    if (this.isInitial) return this.rates();
    if (this.stepCount === 1 && lastEpoch > 0)
      return this.baseLrs.map((rate) => etaMin + ((rate - etaMin) * (1 + Math.cos((lastEpoch * Math.PI) / tMax))) / 2);
    if ((lastEpoch - 1 - tMax) % (2 * tMax) === 0) {
      return this.knownRates().map(
        (rate, i) => rate + ((this.baseLrs[i]! - etaMin) * (1 - Math.cos(Math.PI / tMax))) / 2,
      );
    }
    const ratio = (1 + Math.cos((Math.PI * lastEpoch) / tMax)) / (1 + Math.cos((Math.PI * (lastEpoch - 1)) / tMax));
    return this.rates().map((rate) => ratio * (rate - etaMin) + etaMin);
  }

  protected override closedForm(): number[] {
    const { tMax, etaMin, lastEpoch } = this;
    return this.baseLrs.map((rate) => etaMin + ((rate - etaMin) * (1 + Math.cos((Math.PI * lastEpoch) / tMax))) / 2);
  }
}
