/** @file Half a cosine down, again and again, each time longer if asked for. */
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import type { Real } from '../../base/text.ts';
import { type AnyOptimizer, LRScheduler, type ScheduleOptions } from './lr-scheduler.ts';

/** What CosineAnnealingWarmRestarts can be told. */
export interface WarmRestartsOptions extends ScheduleOptions {
  /** Each period is this many times as long as the one before. */
  tMult?: number | undefined;
  etaMin?: Real | undefined;
}

/** Along half a cosine to `etaMin` over `t0` steps, then from the top. @example new CosineAnnealingWarmRestarts(optimizer, 10, { tMult: 2 }) */
export class CosineAnnealingWarmRestarts extends LRScheduler {
  readonly t0: number;
  readonly tMult: number;
  readonly etaMin: number;
  /** Length of this period, and how much of it is over. */
  private period: number;
  private current: number;

  constructor(optimizer: AnyOptimizer, t0: number, options?: WarmRestartsOptions) {
    const given = readOptions('CosineAnnealingWarmRestarts', options, { tMult: 1, etaMin: 0, lastEpoch: -1 });
    checkWhole('CosineAnnealingWarmRestarts: t0', t0, 1);
    checkWhole('CosineAnnealingWarmRestarts: tMult', given.tMult, 1);
    super(optimizer, given.lastEpoch);
    this.t0 = t0;
    this.tMult = given.tMult;
    this.etaMin = given.etaMin;
    this.period = t0;
    this.current = given.lastEpoch;
    this.begin();
  }

  protected getLr(): number[] {
    const { etaMin, current, period } = this;
    return this.baseLrs.map((rate) => etaMin + ((rate - etaMin) * (1 + Math.cos((Math.PI * current) / period))) / 2);
  }

  /** Sets the rates of the next step, or of a place given in steps, which may be between two. */
  override step(epoch?: number): void {
    this.stepCount++;
    if (epoch === undefined && this.lastEpoch >= 0) {
      this.current++;
      if (this.current >= this.period) {
        this.current -= this.period;
        this.period *= this.tMult;
      }
      this.lastEpoch++;
    } else {
      this.goTo(epoch ?? 0);
    }
    this.apply(this.getLr());
  }

  override restart(epoch: number): void {
    this.goTo(epoch);
    this.apply(this.getLr());
  }

  private goTo(epoch: number): void {
    if (!(epoch >= 0))
      throw new TorchError('BAD_ARGUMENT', `CosineAnnealingWarmRestarts: the step must be at least 0, got ${epoch}`);
    const { t0, tMult } = this;
    if (epoch < t0) {
      this.period = t0;
      this.current = epoch;
    } else if (tMult === 1) {
      this.period = t0;
      this.current = epoch % t0;
    } else {
      const periods = Math.trunc(Math.log((epoch / t0) * (tMult - 1) + 1) / Math.log(tMult));
      this.current = epoch - (t0 * (tMult ** periods - 1)) / (tMult - 1);
      this.period = t0 * tMult ** periods;
    }
    this.lastEpoch = Math.floor(epoch);
  }
}
