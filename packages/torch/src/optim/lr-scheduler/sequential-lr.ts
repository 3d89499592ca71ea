/** @file Schedules one after the other. */
import { checkGiven } from '../../base/checks.ts';
import { TorchError } from '../../base/errors.ts';
import { checkWhole, readOptions } from '../../base/options.ts';
import { type AnyOptimizer, LRScheduler, type ScheduleOptions, type ScheduleState, setRate } from './lr-scheduler.ts';

/** One schedule after the other, changing at milestones. @example new SequentialLR(optimizer, [warmUp, cosine], [100]) */
export class SequentialLR extends LRScheduler {
  private readonly schedules: readonly LRScheduler[];
  readonly milestones: readonly number[];

  constructor(
    optimizer: AnyOptimizer,
    schedulers: readonly LRScheduler[],
    milestones: readonly number[],
    options?: ScheduleOptions,
  ) {
    super(optimizer, readOptions('SequentialLR', options, { lastEpoch: -1 }).lastEpoch + 1);
    for (const [name, list] of Object.entries({ schedulers, milestones }))
      checkGiven('SequentialLR', Array.isArray(list), [name, list], 'an array');
    for (const milestone of milestones) checkWhole('SequentialLR: a milestone', milestone);
    if (schedulers.length === 0 || milestones.length !== schedulers.length - 1) {
      throw new TorchError(
        'BAD_ARGUMENT',
        `SequentialLR: ${schedulers.length} schedules need ${Math.max(0, schedulers.length - 1)} milestones, got ${milestones.length}`,
      );
    }
    for (const schedule of schedulers) {
      if (!(schedule instanceof LRScheduler) || schedule.optimizer !== optimizer)
        throw new TorchError(
          'BAD_ARGUMENT',
          'SequentialLR: all schedules must be of this optimizer, and depend on the step alone',
        );
    }
    this.schedules = schedulers;
    this.milestones = [...milestones];
    for (const group of optimizer.paramGroups) if (group.initialLr !== undefined) setRate(group, group.initialLr);
    this.undo();
    const first = this.current(0);
    first.initialStep();
    this.lastLr = first.getLastLr();
  }

  /** Takes back the step that each schedule made when it was constructed. */
  private undo(): void {
    for (const schedule of this.schedules) {
      if (schedule instanceof SequentialLR) schedule.undo();
      else schedule.lastEpoch--;
    }
  }

  private current(epoch: number): LRScheduler {
    return this.schedules[this.milestones.filter((milestone) => milestone <= epoch).length]!;
  }

  protected getLr(): number[] {
    return this.rates();
  }

  override step(): void {
    this.lastEpoch++;
    const schedule = this.current(this.lastEpoch);
    if (this.milestones.includes(this.lastEpoch)) schedule.restart(0);
    else schedule.step();
    this.lastLr = schedule.getLastLr();
  }

  /** Goes to a step directly; one inside of another sequence begins anew with its first schedule. */
  override restart(epoch: number): void {
    checkWhole('SequentialLR.restart: the epoch', epoch);
    this.lastEpoch = epoch;
    const schedule = this.current(epoch);
    schedule.restart(epoch - (this.milestones.findLast((milestone) => milestone <= epoch) ?? 0));
    this.lastLr = schedule.getLastLr();
  }

  override stateDict(): ScheduleState {
    return { ...super.stateDict(), schedules: this.schedules.map((schedule) => schedule.stateDict()) };
  }

  override loadStateDict(state: ScheduleState): void {
    const { schedules, ...own } = state;
    (schedules as ScheduleState[]).forEach((saved, i) => this.schedules[i]!.loadStateDict(saved));
    this.lastEpoch = own['lastEpoch'] as number;
    this.lastLr = [...(own['lastLr'] as number[])];
  }
}

/** Several schedules at once: their factors multiply. */
export class ChainedScheduler {
  readonly schedulers: readonly LRScheduler[];

  constructor(schedulers: readonly LRScheduler[]) {
    checkGiven(
      'ChainedScheduler',
      Array.isArray(schedulers),
      ['the first argument', schedulers],
      'an array of schedules',
    );
    if (schedulers.length === 0)
      throw new TorchError('BAD_ARGUMENT', 'ChainedScheduler: at least one schedule is needed');
    this.schedulers = schedulers;
  }

  /** Steps all schedules, in order. */
  step(): void {
    for (const schedule of this.schedulers) schedule.step();
  }

  /** The rates of all groups as they were set last. */
  getLastLr(): number[] {
    return this.schedulers.at(-1)!.getLastLr();
  }

  /** Everything needed to go on later. */
  stateDict(): ScheduleState {
    return { schedules: this.schedulers.map((schedule) => schedule.stateDict()) };
  }

  /** Goes on where `stateDict` was taken. */
  loadStateDict(state: ScheduleState): void {
    (state['schedules'] as ScheduleState[]).forEach((saved, i) => this.schedulers[i]!.loadStateDict(saved));
  }
}
