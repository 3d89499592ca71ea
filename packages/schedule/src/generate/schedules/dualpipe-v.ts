/** @file DualPipeV: two stages per rank in a V, forwards of one overlapped with backwards of the other. */

import { Code } from '../../model/packed.ts';
import { stageToRank } from '../../model/placement.ts';
import { ScheduleBuilder } from '../../model/schedule-builder.ts';
import { refuseShape, type ScheduleDefinition, type ScheduleShape } from '../definition.ts';

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
    const { ranks, stages, microbatches, compat } = shape;
    if (compat === 'torch' && microbatches < stages) {
      refuseShape(
        shape,
        `the reference needs at least as many microbatches as stages (${stages})`,
        `use ${stages} microbatches or leave compat out`,
      );
    }
    const placement = stageToRank({ ranks, stages, style: 'v' });
    const builder = new ScheduleBuilder({
      ...shape,
      stageToRank: placement,
      capacity: 4 * Math.max(stages, microbatches),
    });
    for (let rank = 0; rank < ranks; rank++) new Row(shape, builder, rank).generate();
    return builder.finish();
  },
};

/** One rank's row: counters number the microbatches, a queue holds the weight work put off. */
class Row {
  private readonly shape: ScheduleShape;
  private readonly builder: ScheduleBuilder;
  private readonly rank: number;
  private readonly nextForward = new Map<number, number>();
  private readonly nextBackward = new Map<number, number>();
  private readonly putOff: [stage: number, microbatch: number][] = [];

  constructor(shape: ScheduleShape, builder: ScheduleBuilder, rank: number) {
    this.shape = shape;
    this.builder = builder;
    this.rank = rank;
  }

  generate(): void {
    const { rank } = this;
    const { ranks, stages, microbatches } = this.shape;
    const planned = Math.max(stages, microbatches);
    const down = rank; // the stage on the way down the V: 0 in the notation below
    const up = stages - 1 - rank; // the stage on the way up: 1
    const after = ranks - 1 - rank;
    for (let i = 0; i < 2 * after; i++) this.forward(down); // n(F0)
    for (let i = 0; i < rank + 1; i++) {
      this.forward(down); // n(F0 F1)
      this.forward(up);
    }
    for (let i = 0; i < after; i++) {
      this.inputBackward(up); // n(I1 W1 F1)
      this.weight();
      this.forward(up);
    }
    for (let i = 0; i < planned - stages + rank + 1; i++) {
      if (i === 0 && rank === ranks - 1) {
        this.forward(down); // once, on the last rank: F0 B1 F1B0
        this.fullBackward(up);
      } else {
        this.overlap(down, up); // n(F0B1 F1B0)
      }
      this.overlap(up, down);
    }
    for (let i = 0; i < after; i++) {
      this.fullBackward(up); // n(B1 F1B0)
      this.overlap(up, down);
    }
    const half = Math.floor((rank + 1) / 2);
    for (let i = 0; i < rank + 1; i++) {
      if (i > half || (i === half && rank % 2 === 1))
        this.inputBackward(up); // n(B1 B0), from half way n(I1 I0)
      else this.fullBackward(up);
      if (i >= half) this.inputBackward(down);
      else this.fullBackward(down);
    }
    for (let i = 0; i < after; i++) {
      this.weight(); // n(W I0)
      this.inputBackward(down);
    }
    for (let i = 0; i < rank + 1; i++) this.weight(); // n(W)
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
    this.putOff.push([stage, microbatch]);
  }

  /** The oldest weight work put off. */
  private weight(): void {
    const [stage, microbatch] = this.putOff.shift()!;
    this.emit(Code.W, stage, microbatch);
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
