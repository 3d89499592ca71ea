// @ts-check
/**
 * @file A rank of a pipeline in which one rank gets something wrong in the middle: the step is refused, and the next ones run.
 * `node refusing.mjs '<case>'` runs a case and prints what its ranks return as one line of JSON.
 */
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { isMainThread } from 'node:worker_threads';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, manualSeed, nn, ones, scope } from '@pipewright/torch';
import { launch, PipelineError, PipelineRuntime, PipelineStage } from 'pipewright';

const MICROBATCHES = 4;
const WIDTH = 3;

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/**
 * What ranks do wrong, by name.
 * @type {Record<string, { rank: number, call: (given: { runtime: PipelineRuntime, x: Tensor, y: Tensor }) => unknown }>}
 */
const faults = {
  rows: { rank: 0, call: ({ runtime, y }) => runtime.step(ones([2, WIDTH]), { target: y }) },
  shape: { rank: 0, call: ({ runtime, y }) => runtime.step(ones([8, WIDTH + 1]), { target: y }) },
  target: { rank: -1, call: ({ runtime, x }) => runtime.step(x) },
  // @ts-expect-error: the option has a spelling mistake
  option: { rank: -1, call: ({ runtime, x }) => runtime.step(x, { taget: x }) },
  // @ts-expect-error: the same, where the outputs go to all ranks
  outputs: { rank: 0, call: ({ runtime, x }) => runtime.step(x, { taget: x, returnOutputs: 'everywhere' }) },
  everywhere: { rank: 0, call: ({ runtime }) => runtime.eval(ones([2, WIDTH]), { returnOutputs: 'everywhere' }) },
};

/** @param {{ mode: 'threads' | 'processes', schedule: import('@pipewright/schedule').ScheduleName, ranks: number, fault: string, tied: boolean }} one */
export function main(one) {
  const group = distributed.initProcessGroup({ timeoutMs: 60_000 });
  const plan = buildSchedule(one.schedule, { ranks: one.ranks, microbatches: MICROBATCHES });
  const stages = plan.stagesOf(group.rank).map((index) => {
    manualSeed(index);
    const module = new nn.Linear(WIDTH, WIDTH).double();
    const isEnd = index === 0 || index === plan.stages - 1;
    return new PipelineStage(module, index, plan.stages, {
      group,
      ...(one.tied && isEnd ? { ties: { weight: 'w' } } : {}),
    });
  });
  const runtime = new PipelineRuntime(stages, plan, { lossFn: nn.functional.mseLoss, group });
  manualSeed(99);
  const [x, y] = [ones([8, WIDTH], { dtype: 'float64' }).mul(0.5), ones([8, WIDTH], { dtype: 'float64' })];
  const gradients = () =>
    stages.flatMap(({ module }) =>
      module.parameters().map((p) => (p.grad === null ? null : p.grad.flatten().toArray())),
    );
  /** @type {(string | null)[]} */
  const codes = [];
  /** @type {unknown[]} */
  const kept = [];
  const found = faults[one.fault];
  if (found === undefined) throw new Error(`no fault '${one.fault}'`);
  const { rank, call } = found;
  const isWrong = group.rank === (rank === 0 ? 0 : plan.stageToRank[plan.stages - 1]);
  for (let round = 0; round < 4; round++)
    scope(() => {
      const before = gradients();
      try {
        if (round % 2 === 1 && isWrong) call({ runtime, x, y });
        else if (round % 2 === 1 && one.fault === 'everywhere') runtime.eval(x, { returnOutputs: 'everywhere' });
        else runtime.step(x, { target: y, returnOutputs: one.fault === 'outputs' ? 'everywhere' : true });
        codes.push(null);
      } catch (error) {
        codes.push(error instanceof PipelineError ? error.code : String(error));
      }
      if (round % 2 === 1) kept.push([before, gradients()]);
    });
  const inFlight = stages.reduce((sum, stage) => sum + stage.inFlight, 0);
  return { codes, kept, gradients: gradients(), inFlight };
}

const isStarted = process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href;
if (isMainThread && isStarted && process.env['RANK'] === undefined) {
  const one = JSON.parse(process.argv[2] ?? '{}');
  const { ranks, mode } = one;
  const result = await launch({ ranks, mode, script: new URL(import.meta.url), data: one }).done;
  process.stdout.write(`result ${JSON.stringify(result)}\n`);
}
