/** @file Small pipelines on one rank, for tests, and plain training to compare them with. */
import type { Schedule, ScheduleName } from '@pipewright/schedule';
import { manualSeed, nn, randn, type Tensor } from '@pipewright/torch';
import { expect } from 'vitest';
import type { Value } from '../src/base/value.ts';
import type { RuntimeOptions } from '../src/runtime/options.ts';
import { PipelineRuntime } from '../src/runtime/runtime.ts';
import { PipelineStage } from '../src/stage/pipeline-stage.ts';
import type { PipelineStageOptions } from '../src/stage/stage-options.ts';

/** Width of all layers. */
export const WIDTH = 4;
/** The mean of squared differences. */
export const mse = (output: Tensor, target: Tensor): Tensor => nn.functional.mseLoss(output, target);

/** A module from a function, with one linear layer and a count of its calls. */
export class Layer extends nn.Module {
  readonly fc: nn.Linear = new nn.Linear(WIDTH, WIDTH).double();
  calls = 0;
  readonly run: (fc: nn.Linear, ...inputs: never[]) => unknown;

  constructor(run: (fc: nn.Linear, ...inputs: never[]) => unknown = (fc, x: Tensor) => fc.forward(x).tanh()) {
    super();
    this.run = run;
  }

  forward(...inputs: unknown[]): unknown {
    this.calls++;
    return this.run(this.fc, ...(inputs as never[]));
  }
}

/** A runtime and its modules. */
export interface Made<Inputs extends readonly Value[], Target extends Value, Output extends Value> {
  readonly runtime: PipelineRuntime<Inputs, Target, Output>;
  readonly modules: Layer[];
}

/** All stages on one rank. */
export function make<
  Target extends Value = Tensor,
  Output extends Value = Tensor,
  Inputs extends readonly Value[] = readonly Tensor[],
>(
  modules: Layer[],
  schedule: ScheduleName | Schedule = 'Interleaved1F1B',
  options: RuntimeOptions<Target, Output, never> = {},
  stageOptions: (index: number) => PipelineStageOptions = () => ({}),
): Made<Inputs, Target, Output> {
  const stages = modules.map((module, i) => new PipelineStage(module, i, modules.length, stageOptions(i)));
  const microbatches = typeof schedule === 'string' ? { microbatches: 4 } : {};
  const all = { ...microbatches, lossFn: mse, ...options } as RuntimeOptions<Target, Output>;
  return { runtime: new PipelineRuntime<Inputs, Target, Output>(stages, schedule, all), modules };
}

/** So many layers, the same ones every time. */
export const layers = (count: number, run?: ConstructorParameters<typeof Layer>[0]): Layer[] => {
  manualSeed(7);
  return Array.from({ length: count }, () => new Layer(run));
};
/** Inputs and targets, the same ones every time. */
export const batch = (rows: number): { x: Tensor; y: Tensor } => {
  manualSeed(rows);
  return { x: randn([rows, WIDTH], { dtype: 'float64' }), y: randn([rows, WIDTH], { dtype: 'float64' }) };
};
/** All gradients as numbers. */
export const gradsOf = (modules: readonly nn.Module[]): (number[] | null)[] =>
  modules.flatMap((module) =>
    module
      .parameters()
      .map((p) => (p.grad === null ? null : Array.from(p.grad.flatten().toTypedArray() as Float64Array))),
  );
/** Expects the same gradients, but for rounding. */
export function expectClose(a: (number[] | null)[], b: (number[] | null)[]): void {
  expect(a.map((item) => item?.length)).toEqual(b.map((item) => item?.length));
  a.forEach((item, i) => item?.forEach((value, j) => expect(value).toBeCloseTo(b[i]![j] as number, 12)));
}
/** Gradients of the modules in a row, on the whole batch at once. */
export function plainGrads(modules: readonly Layer[], { x, y }: { x: Tensor; y: Tensor }): (number[] | null)[] {
  for (const module of modules) module.zeroGrad();
  mse(
    modules.reduce((h, module) => module.forward(h) as Tensor, x),
    y,
  ).backward();
  const found = gradsOf(modules);
  for (const module of modules) module.zeroGrad();
  return found;
}
