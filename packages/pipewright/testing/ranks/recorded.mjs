// @ts-check
/**
 * @file Recorded runs for the tests of the recorder: `node recorded.mjs '<case>'` runs a case and prints what its ranks
 * return as one line of JSON.
 */
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { isMainThread } from 'node:worker_threads';
import { buildSchedule } from '@pipewright/schedule';
import { distributed, scope } from '@pipewright/torch';
import { launch, PipelineRuntime, PipelineStage, Recorder } from 'pipewright';
import { lossOf, makeBatch, makeStage } from './models.mjs';

/**
 * What a rank does: two steps, an evaluation, two more steps.
 * @param {{ mode: 'threads' | 'processes', schedule: import('@pipewright/schedule').ScheduleName, model: string, ranks: number, microbatches: number, keep?: number, late?: boolean }} one
 */
export function main(one) {
  const group = one.ranks > 1 ? distributed.initProcessGroup({ timeoutMs: 100_000 }) : null;
  const rank = group?.rank ?? 0;
  const schedule = buildSchedule(one.schedule, { ranks: one.ranks, microbatches: one.microbatches });
  const stages = schedule.stagesOf(rank).map((index) => {
    const { module, options } = makeStage(one.model, index, schedule.stages);
    return new PipelineStage(module, index, schedule.stages, { ...options, ...(group === null ? {} : { group }) });
  });
  const recorder = new Recorder({ steps: one.keep ?? 100, tokensPerStep: 3 * one.microbatches });
  const lossFn = lossOf(one.model);
  const runtime = new PipelineRuntime(stages, one.schedule, {
    microbatches: one.microbatches,
    lossFn,
    record: recorder,
    earlyGradients: one.late !== true,
  });
  const { x, target } = makeBatch(one.model, 3 * one.microbatches, 0);
  const step = () => scope(() => void runtime.step(x, { target, returnOutputs: false }));
  step();
  step();
  scope(() => void runtime.eval(x, { target }));
  step();
  step();
  return {
    recording: recorder.gather(),
    report: recorder.report(),
    timeline: recorder.timeline(),
    lastStep: recorder.lastStep,
    stepCount: recorder.stepCount,
  };
}

const isStarted = process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href;
if (isMainThread && isStarted && process.env['RANK'] === undefined) {
  const one = JSON.parse(process.argv[2] ?? '{}');
  const { ranks, mode } = one;
  const result = await launch({ ranks, mode, script: new URL(import.meta.url), data: one }).done;
  process.stdout.write(`result ${JSON.stringify(result)}\n`);
}
