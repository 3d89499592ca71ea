/** @file Plans of several pipelines on ranks: the numbers of plain training, the bytes that were predicted, and programs without a mesh. */
import { type PipelinePlan, shardingLevels } from '@pipewright/schedule';
import { nn, randn } from '@pipewright/torch';
import { expect, test } from 'vitest';
import { casesOnThreads } from '../../testing/launch.ts';
import { measureUnits, PipelineRuntime, pipeline, planPipeline, planStages, type UnitCosts } from '../index.ts';

const program = new URL('../../testing/ranks/planned.mjs', import.meta.url);
const width = 8;

function model(): nn.Module {
  return new nn.Sequential(
    ...Array.from({ length: 4 }, () => new nn.Sequential(new nn.Linear(width, width), new nn.Tanh())),
  );
}

/** Units of the model with made-up times; parameters in float64. */
function units(): UnitCosts[] {
  return measureUnits(model(), [randn(2, width)], { rounds: 1 }).units.map(({ name, begins }) => ({
    name,
    begins,
    ...{ F: 1e-3, I: 1e-3, W: 1e-3, activation: 2e3, retained: 1e3, input: 2 * width * 8 },
    parameters: (width * width + width) * 8,
  }));
}

interface Outcome {
  readonly weights: Readonly<Record<string, readonly number[]>>;
  readonly mesh?: readonly number[];
  readonly counted?: number;
  readonly rank?: number;
}

test('a plan of 2 x 2 computes what plain training does at every level, and holds what was predicted', async () => {
  const machine = { ranks: 4, bandwidth: 1e9, latency: 1e-6 };
  const plans = shardingLevels.map((level): PipelinePlan => {
    const options = { machine, tables: [{ rows: 2, units: units() }], batch: 16, replicas: [2], levels: [level] };
    const [plan] = planPipeline({ ...options, schedules: ['1F1B'] }).plans;
    return plan as PipelinePlan;
  });
  const cases = [{ plan: plans[0], plain: true }, ...plans.map((plan) => ({ plan }))];
  const results = await casesOnThreads<Outcome>(program, 4, cases);
  const meshes = new Set<string>();
  for (const [plain, ...planned] of results as [Outcome, ...Outcome[]][])
    planned.forEach(({ weights, mesh, counted, rank }, i) => {
      const { predicted, dataParallel } = plans[i] as PipelinePlan;
      meshes.add(String(mesh));
      expect(Object.keys(weights).length).toBeGreaterThan(1);
      for (const [name, values] of Object.entries(weights)) {
        const want = plain.weights[name] as readonly number[];
        values.forEach((value, at) => {
          expect(Math.abs(value - (want[at] as number)), `${dataParallel?.level} ${name}`).toBeLessThan(1e-12);
        });
      }
      if (dataParallel?.level === 'parameters') expect(counted).toBe(predicted.parameters?.[rank!]);
    });
  expect([...meshes].sort()).toEqual(['0,0', '0,1', '1,0', '1,1']);
}, 120_000);

test('a program that makes no mesh is told how', () => {
  const machine = { ranks: 2, bandwidth: 1e9 };
  const options = { machine, tables: [{ rows: 2, units: units() }], batch: 8, schedules: ['1F1B'] as const };
  const [plan] = planPipeline({ ...options, replicas: [2], levels: ['gradients'] }).plans;
  if (plan === undefined) expect.unreachable();
  const pipe = pipeline(model(), { mbArgs: [randn(2, width)], plan });
  expect(() => new PipelineRuntime(pipe.buildStage(0), plan, { lossFn: nn.functional.mseLoss })).toThrow(
    /the plan has 2 shards of gradients, the stages one pipeline; build them with planStages\(pipe, plan\), or plan with --dp 1/,
  );
  expect(() => planStages(pipe, plan)).toThrow(/the plan is for 1 x 2 ranks, but there are 1; start 2 of them/);
  expect(() => planStages(plan as never, plan)).toThrow(/what pipeline\(model, { plan }\) returned/);
  const [one] = planPipeline({ ...options, machine: { ranks: 1 } }).plans;
  const { stages, mesh, replicas, replica } = planStages(
    pipeline(model(), { mbArgs: [randn(2, width)], plan: one }),
    one as PipelinePlan,
  );
  expect([stages.length, mesh, replicas, replica]).toEqual([1, null, 1, 0]);
});
