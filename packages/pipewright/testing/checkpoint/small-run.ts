/** @file A run of one rank whose weights say which step it is at, for tests of checkpoints. */
import { manualSeed, nn, noGrad, optim, randn, scope } from '@pipewright/torch';
import { PipelineStage } from '../../src/stage/pipeline-stage.ts';

/** The run. */
export class SmallRun {
  readonly stages: PipelineStage;
  readonly optimizer: optim.AdamW;

  constructor() {
    manualSeed(1);
    this.stages = new PipelineStage(new nn.Sequential(new nn.Linear(4, 3), new nn.Linear(3, 2)), 0, 1);
    this.optimizer = new optim.AdamW(this.stages.module.parameters(), { lr: 0.1 });
    scope(() => {
      (this.stages.module as nn.Sequential)
        .forward(randn([2, 4]))
        .sum()
        .backward();
      this.optimizer.step();
    });
  }

  /** What is saved and loaded. */
  get state(): { stages: PipelineStage; optimizer: optim.AdamW } {
    return { stages: this.stages, optimizer: this.optimizer };
  }

  /** Gives all weights one value. */
  set value(value: number) {
    noGrad(() => {
      for (const parameter of this.stages.module.parameters()) parameter.fill_(value);
    });
  }

  get value(): number {
    return scope(() => this.stages.module.parameters()[0]?.at(0, 0).item() ?? -1);
  }
}
