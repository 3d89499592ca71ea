/**
 * @file Which steps are replays, and what their graphs read, without a GPU: a graph here writes again what its recording has
 * written, from the memory that the recording has read.
 */
import { nn, noGrad, ones, randn, scope, type Tensor, zeros } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { PipelineStage } from '../stage/index.ts';
import { StepCapture, type StepInput, type StepResult } from './capture.ts';
import type { StepOptions } from './options.ts';
import { LossGrads } from './row/loss-grads.ts';
import { PipelineRuntime } from './runtime.ts';
import type { StepGraph, Transport } from './transport/transport.ts';

/** A rank whose step multiplies the gradient of its loss with its input: that is the gradient of its weight. */
class Rank {
  readonly module = new nn.Sequential(new nn.Linear(1, 1, { bias: false }), new nn.Dropout(0));
  readonly lossGrads = new LossGrads();
  readonly capture: StepCapture;
  /** What happened in each step. */
  readonly log: string[] = [];
  freed = 0;
  /** What the graph under way does again. */
  private work: (() => void)[] = [];
  private fails = false;

  constructor() {
    const stage = new PipelineStage(this.module, 0, 1);
    const transport = { makeGraph: (): StepGraph => this.newGraph() } as Partial<Transport> as Transport;
    this.capture = new StepCapture({ stages: [stage], transport, lossGrads: this.lossGrads }, null);
    this.capture.problem = null; // it is on the CPU
  }

  get weight(): Tensor {
    return this.module.parameters()[0]!;
  }

  /** One step; gives the gradient that it leaves. */
  step(x: number, weight: number, options: StepOptions = {}, rows = 1): number {
    this.weight.grad = null;
    const input = { args: [ones([rows]).mul(x)], options };
    return scope(() => {
      const begin = this.log.length;
      const eagerly = (given: StepInput): StepResult => {
        this.log.push(this.capture.isRecording ? 'recorded' : 'run');
        return this.eagerly(given, options.divisor === undefined ? weight : 1 / options.divisor);
      };
      this.capture.run(input, eagerly, { state: this.capture.stateKey(), agreement: null });
      if (this.log.length === begin) this.log.push('replayed');
      return this.weight.grad!.item() as number;
    });
  }

  /** The next recording fails. */
  failNext(): void {
    this.fails = true;
  }

  private eagerly({ args }: StepInput, weight: number): StepResult {
    const grad = this.capture.lossGrads.of(0, zeros([]), weight);
    const [x] = args as [Tensor];
    const compute = (): Tensor => noGrad(() => x.at(0).mul(grad).reshape([1, 1]));
    const found = compute();
    this.weight.grad = found;
    if (this.capture.isRecording) this.work.push(() => noGrad(() => void found.copy_(compute())));
    return { outputs: undefined, losses: [], lossValues: null, failure: null };
  }

  private newGraph(): StepGraph {
    let work: (() => void)[] = [];
    return {
      capture: (body) => {
        this.work = [];
        const result = body();
        if (this.fails) throw new Error('no memory');
        work = this.work;
        return result;
      },
      replay: () => {
        for (const each of work) each();
      },
      reset: () => void this.freed++,
    };
  }
}

test('a replay begins its backward with the weights of its own step, whatever other steps had', () => {
  const rank = new Rank();
  expect([rank.step(2, 0.5), rank.step(3, 0.5), rank.step(4, 0.5)]).toEqual([1, 1.5, 2]);
  expect([rank.step(2, 0.25, {}, 3), rank.step(2, 0.125, {}, 5)]).toEqual([0.5, 0.25]); // steps of other rows
  expect([rank.step(4, 0.5), rank.step(6, 0.25, {}, 3), rank.step(8, 0.5)]).toEqual([2, 1.5, 4]);
  expect(rank.log).toEqual(['run', 'recorded', 'replayed', 'run', 'run', 'replayed', 'recorded', 'replayed']);
});

test('a recording that fails leaves the gradients of losses of the steps that follow as they are', () => {
  const rank = new Rank();
  rank.failNext();
  expect([rank.step(2, 0.5), rank.step(4, 0.5), rank.step(6, 0.5)]).toEqual([1, 2, 3]);
  expect(rank.log).toEqual(['run', 'recorded', 'run', 'run']);
  expect(rank.capture.problem).toBe('no memory');
});

test('a recording that fails frees the others, which are no longer replayed', () => {
  const rank = new Rank();
  for (let i = 0; i < 3; i++) rank.step(1, 1);
  rank.failNext();
  expect([rank.step(2, 1, {}, 3), rank.step(3, 1, {}, 3), rank.step(4, 1)]).toEqual([2, 3, 4]);
  expect(rank.log).toEqual(['run', 'recorded', 'replayed', 'run', 'recorded', 'run', 'run']);
  expect(rank.freed).toBe(2);
});

test('a step whose input wants a gradient is not recorded: a replay computes with a copy of it', () => {
  const rank = new Rank();
  const x = ones([1]).requiresGrad_();
  const given: boolean[] = [];
  for (let i = 0; i < 3; i++)
    rank.capture.run(
      { args: [x], options: {} },
      ({ args }) => {
        given.push(args[0] === x);
        return { outputs: undefined, losses: [], lossValues: null, failure: null };
      },
      { state: rank.capture.stateKey(), agreement: null },
    );
  expect(given).toEqual([true, true, true]);
});

test('a hook that comes later speaks against recording too', () => {
  const stage = new PipelineStage(new nn.Linear(1, 1), 0, 1);
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 1, lossFn: nn.functional.mseLoss, capture: true });
  const { captureSteps } = runtime as unknown as { captureSteps: () => StepCapture };
  captureSteps.call(runtime).problem = null; // it is on the CPU
  expect(runtime.captureProblem).toBeNull();
  runtime.addHook({ before: () => undefined });
  expect(runtime.captureProblem).toBe('hooks and custom functions run in every step');
});

test('another divisor is no other step: it is filled in before the replay', () => {
  const rank = new Rank();
  expect([4, 4, 8, 2, 8].map((divisor) => rank.step(8, 1, { divisor }))).toEqual([2, 2, 1, 4, 1]);
  expect(rank.log).toEqual(['run', 'recorded', 'replayed', 'replayed', 'replayed']);
  rank.step(8, 1, { divisor: Number.NaN });
  expect(rank.log.at(-1)).toBe('run'); // where it is refused
  rank.step(8, 0.5);
  expect(rank.log.at(-1)).toBe('run');
});

test.each<[string, (rank: Rank) => void]>([
  ['a parameter is frozen', ({ weight }) => void weight.requiresGrad_(false)],
  ['a module goes to evaluation', ({ module }) => void module.modules().at(-1)!.eval()],
  ['a parameter has other memory', ({ weight }) => noGrad(() => weight.setData(weight.clone()))],
  [
    'a parameter is another tensor',
    ({ module }) => void module.loadStateDict(new Map([['0.weight', randn([1, 1])]]), { assign: true }),
  ],
])('once %s, a step is recorded anew', (_, change) => {
  const rank = new Rank();
  for (let i = 0; i < 3; i++) rank.step(1, 1);
  change(rank);
  expect([rank.step(2, 1), rank.step(3, 1), rank.step(4, 1)]).toEqual([2, 3, 4]);
  expect(rank.log).toEqual(['run', 'recorded', 'replayed', 'run', 'recorded', 'replayed']);
});

test('of many recordings those are freed that were not replayed for the longest time', () => {
  const rank = new Rank();
  for (let rows = 1; rows <= 16; rows++) for (let i = 0; i < 2; i++) rank.step(1, 1, {}, rows);
  expect(rank.freed).toBe(0);
  rank.step(1, 1, {}, 1);
  for (let i = 0; i < 2; i++) rank.step(1, 1, {}, 17);
  expect(rank.freed).toBe(1);
  rank.log.length = 0;
  for (const rows of [1, 3, 17, 2, 2]) rank.step(1, 1, {}, rows);
  expect(rank.log).toEqual(['replayed', 'replayed', 'replayed', 'recorded', 'replayed']);
  rank.capture.dispose();
  expect(rank.freed).toBe(18);
});
