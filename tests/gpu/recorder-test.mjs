// @ts-check
/** @file The recorder on a GPU: times of its stream, nothing overlaps, memory of the device; what it costs. */
import assert from 'node:assert/strict';
import { isMainThread } from 'node:worker_threads';
import { recordedActions, recordingSummary } from '@pipewright/schedule';
import { cuda, distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage, Recorder } from 'pipewright';

const WIDTH = 1024;
const STEPS = 20;
const device = 'cuda';

/** @param {{ ranks: number, record: boolean }} setting */
export function main({ ranks, record }) {
  const group = ranks > 1 ? distributed.initProcessGroup() : null;
  const stages = Array.from({ length: ranks > 1 ? 1 : 2 }, (_, i) => {
    const module = new nn.Sequential(new nn.Linear(WIDTH, WIDTH), new nn.GELU(), new nn.Linear(WIDTH, WIDTH));
    return new PipelineStage(module, (group?.rank ?? 0) + i, 2, { device });
  });
  const recorder = record ? new Recorder() : null;
  const runtime = new PipelineRuntime(stages, ranks > 1 ? '1F1B' : 'Interleaved1F1B', {
    microbatches: 8,
    lossFn: nn.functional.mseLoss,
    ...(recorder === null ? {} : { record: recorder }),
  });
  const [x, y] = [randn([512, WIDTH], { device }), randn([512, WIDTH], { device })];
  const inputs = stages.some((stage) => stage.isFirst) ? [x] : [];
  const options = { ...(stages.some((stage) => stage.isLast) && { target: y }), returnOutputs: false };
  const step = () => scope(() => void runtime.step(...inputs, options));
  for (let i = 0; i < 3; i++) step();
  cuda.synchronize();
  const start = performance.now();
  for (let i = 0; i < STEPS; i++) step();
  cuda.synchronize();
  const milliseconds = (performance.now() - start) / STEPS;
  const recording = recorder?.gather() ?? null;
  if (recording !== null) {
    recording.steps.forEach((_, at) => {
      for (let rank = 0; rank < ranks; rank++) {
        let free = 0;
        for (const event of recordedActions(recording, at).filter((other) => other.rank === rank)) {
          assert(event.start >= free && event.end >= event.start, `${JSON.stringify(event)} begins before ${free}`);
          free = event.end;
        }
      }
    });
    for (const { device: of, peakDeviceBytes } of recording.ranks) {
      assert.match(of, /^cuda/);
      assert((peakDeviceBytes ?? 0) > 4 * WIDTH * WIDTH, `peak of ${peakDeviceBytes} bytes`);
    }
    const { recorded } = recordingSummary(recording);
    assert(recorded.step > 0 && recorded.bubble < 1, 'no times');
    console.log(recorder?.report());
  }
  return milliseconds;
}

if (isMainThread) {
  const [off, on] = [main({ ranks: 1, record: false }), main({ ranks: 1, record: true })];
  console.log(`one rank: ${off.toFixed(3)} ms a step, ${on.toFixed(3)} recorded (${(on / off).toFixed(3)})`);
  const script = new URL(import.meta.url);
  const times = await distributed.spawnThreads(2, script, { ranks: 2, record: true }).done;
  console.log(`two threads, recorded: ${times.map((time) => Number(time).toFixed(3)).join(' and ')} ms a step`);
}
