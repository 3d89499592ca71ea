/** @file DualPipeV: two stages per rank in a V, forwards of one overlapped with backwards of the other. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import { checkTorchMicrobatches, type ScheduleDefinition, type ScheduleShape } from './definition.ts';

/** Planned for at least 2P microbatches; those beyond the real number are left out. */
export const dualPipeV: ScheduleDefinition = {
  name: 'DualPipeV',
  aliases: ['ScheduleDualPipeV'],
  summary: 'Two stages per rank in a V; forwards and backwards of different microbatches run overlapped.',
  placement: 'v',
  stagesPerRank: { default: 2, least: 2, most: 2 },
  inTorch: true,
  usesCosts: false,
  usesMemoryLimit: false,
  hasBackward: true,
  generate(shape) {
    const { ranks, stages, microbatches } = shape;
    checkTorchMicrobatches(shape);
    const placement = stageToRank({ ranks, stages, style: 'v' });
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: placement,
      capacity: 4 * microbatches,
    });
    for (let rank = 0; rank < ranks; rank++) new Row(shape, builder, rank).generate();
    return builder.finish();
  },
};

/**
 * One rank's row: counters number the microbatches, a queue holds the weight work put off. The plan is for at least as many
 * microbatches as stages; a loop ends where all that is left of it is of microbatches that are not real.
 */
class Row {
  private readonly shape: ScheduleShape;
  private readonly builder: ScheduleBuilder;
  private readonly rank: number;
  private readonly nextForward = new Map<number, number>();
  private readonly nextBackward = new Map<number, number>();
  private readonly putOff = new WeightQueue();

  constructor(shape: ScheduleShape, builder: ScheduleBuilder, rank: number) {
    this.shape = shape;
    this.builder = builder;
    this.rank = rank;
  }

  generate(): void {
    const { rank, putOff } = this;
    const { ranks, stages, microbatches } = this.shape;
    const planned = Math.max(stages, microbatches);
    const down = rank; // the stage on the way down the V: 0 in the notation below
    const up = stages - 1 - rank; // the stage on the way up: 1
    const after = ranks - 1 - rank;
    for (let i = 0; i < 2 * after && this.hasForward(down); i++) this.forward(down); // n(F0)
    for (let i = 0; i < rank + 1 && (this.hasForward(down) || this.hasForward(up)); i++) {
      this.forward(down); // n(F0 F1)
      this.forward(up);
    }
    for (let i = 0; i < after && (this.hasForward(up) || this.hasBackward(up) || putOff.real > 0); i++) {
      this.inputBackward(up); // n(I1 W1 F1)
      this.weight();
      this.forward(up);
    }
    for (let i = 0; i < planned - stages + rank + 1 && this.hasAny(down, up); i++) {
      if (i === 0 && rank === ranks - 1) {
        this.forward(down); // once, on the last rank: F0 B1 F1B0
        this.fullBackward(up);
      } else {
        this.overlap(down, up); // n(F0B1 F1B0)
      }
      this.overlap(up, down);
    }
    for (let i = 0; i < after && this.hasAny(down, up); i++) {
      this.fullBackward(up); // n(B1 F1B0)
      this.overlap(up, down);
    }
    this.lastBackwards(down, up);
    for (let i = 0; i < after && (this.hasBackward(down) || putOff.real > 0); i++) {
      this.weight(); // n(W I0)
      this.inputBackward(down);
    }
    for (let i = 0; i < rank + 1 && putOff.real > 0; i++) this.weight(); // n(W)
  }

  /** n(B1 B0), from half way n(I1 I0). */
  private lastBackwards(down: number, up: number): void {
    const { rank } = this;
    const half = Math.floor((rank + 1) / 2);
    const splitUp = rank % 2 === 1 ? half : half + 1; // from here on the way up is split
    let i = 0;
    for (; i < rank + 1 && (this.hasBackward(up) || this.hasBackward(down)); i++) {
      if (i >= splitUp) this.inputBackward(up);
      else this.fullBackward(up);
      if (i >= half) this.inputBackward(down);
      else this.fullBackward(down);
    }
    this.putOff.skip(Math.max(0, rank + 1 - Math.max(i, splitUp)) + Math.max(0, rank + 1 - Math.max(i, half)));
  }

  private hasForward(stage: number): boolean {
    return (this.nextForward.get(stage) ?? 0) < this.shape.microbatches;
  }

  private hasBackward(stage: number): boolean {
    return (this.nextBackward.get(stage) ?? 0) < this.shape.microbatches;
  }

  private hasAny(down: number, up: number): boolean {
    return this.hasForward(down) || this.hasForward(up) || this.hasBackward(down) || this.hasBackward(up);
  }

  private take(counters: Map<number, number>, stage: number): number {
    const microbatch = counters.get(stage) ?? 0;
    counters.set(stage, microbatch + 1);
    return microbatch;
  }

  private emit(code: number, stage: number, microbatch: number): void {
    if (microbatch < this.shape.microbatches) this.builder.push(this.rank, code, stage, microbatch);
  }

  private forward(stage: number): void {
    this.emit(Code.F, stage, this.take(this.nextForward, stage));
  }

  private fullBackward(stage: number): void {
    this.emit(Code.B, stage, this.take(this.nextBackward, stage));
  }

  private inputBackward(stage: number): void {
    const microbatch = this.take(this.nextBackward, stage);
    this.emit(Code.I, stage, microbatch);
    if (microbatch < this.shape.microbatches) this.putOff.push(stage, microbatch);
    else this.putOff.skip(1);
  }

  /** The oldest weight work put off. */
  private weight(): void {
    const next = this.putOff.take();
    if (next !== null) this.emit(Code.W, next.stage, next.microbatch);
  }

  /** A forward of one stage overlapped with a full backward of the other; one alone if the other is not real. */
  private overlap(forwardStage: number, backwardStage: number): void {
    const { builder, rank } = this;
    const { microbatches } = this.shape;
    const f = this.take(this.nextForward, forwardStage);
    const b = this.take(this.nextBackward, backwardStage);
    if (f < microbatches && b < microbatches)
      builder.overlap(rank, [builder.word(Code.F, forwardStage, f), builder.word(Code.B, backwardStage, b)]);
    else {
      this.emit(Code.F, forwardStage, f);
      this.emit(Code.B, backwardStage, b);
    }
  }
}

/** Weight work put off, oldest first; what is not real takes a turn, too, and is kept as a count. */
class WeightQueue {
  /** Entries of real microbatches that are waiting. */
  real = 0;
  private readonly entries: { readonly stage: number; readonly microbatch: number; count: number }[] = [];
  private head = 0;

  push(stage: number, microbatch: number): void {
    this.real++;
    this.entries.push({ stage, microbatch, count: 1 });
  }

  /** Puts turns of microbatches that are not real behind the rest. */
  skip(count: number): void {
    if (count > 0) this.entries.push({ stage: -1, microbatch: -1, count });
  }

  /** The oldest; null where it is not real. */
  take(): { readonly stage: number; readonly microbatch: number } | null {
    const entry = this.entries[this.head]!;
    if (--entry.count === 0) this.head++;
    if (entry.stage < 0) return null;
    this.real--;
    return entry;
  }
}
