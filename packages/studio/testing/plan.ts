/** @file A plan for tests: four ranks with unequal stages, the last one slower than its layers. */
import { type PipelinePlan, predictPlan } from '@pipewright/schedule';

const stage = (F: number, parameters: number): PipelinePlan['costs'][number] => ({
  F: F / 1000,
  I: F / 1000,
  W: (0.8 * F) / 1000,
  B: (1.7 * F) / 1000,
  activation: 1.5e9,
  retained: 0.6e9,
  parameters,
  input: 1e6,
});

/** 1F1B on 4 ranks with 20 GB, and 8 microbatches. */
export const plan: PipelinePlan = predictPlan({
  version: 1,
  schedule: '1F1B',
  ranks: 4,
  stages: 4,
  stageToRank: [0, 1, 2, 3],
  microbatches: 8,
  rows: 2,
  units: [['layers.0'], ['layers.1'], ['layers.2'], ['layers.3']],
  cutBefore: ['linear_1', 'linear_2', 'linear_3'],
  recompute: [false, false, false, false],
  costs: [stage(10, 1e9), stage(12, 1e9), stage(11, 1e9), stage(9, 2e9)],
  stateFactor: 4,
  machine: { memory: [20e9, 20e9, 20e9, 16e9], slowness: [1, 1, 1, 1.5] },
  predicted: {
    step: 1,
    rowsPerSecond: 1,
    bubble: 0,
    peak: [0, 0, 0, 0],
    held: [0, 0, 0, 0],
    messages: 0,
    messageBytes: 0,
  },
  why: '',
});
