// @ts-check
/**
 * @file What recording costs: steps with and without the recorder in turns, and the recorder's own work alone. Four stages
 * on one rank, so that nothing waits. Run: node bench/recorder.mjs
 */
import { buildSchedule } from '@pipewright/schedule';
import { distributed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage, Recorder } from 'pipewright';

const STAGES = 4;
const MICROBATCHES = 8;
const ROUNDS = 5;

distributed.setNumThreads(1);
const schedule = buildSchedule('Interleaved1F1B', { ranks: 1, stages: STAGES, microbatches: MICROBATCHES });

/** @param {number[]} numbers */
const median = (numbers) => /** @type {number} */ ([...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)]);

/** Milliseconds of processor time of something. @param {() => void} body */
function cpuTime(body) {
  const before = process.cpuUsage();
  body();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
}

/** The recorder's own work for one step of `actions` actions, in milliseconds. @param {number} actions */
function ownCost(actions) {
  const recorder = new Recorder();
  const device = 'cpu';
  recorder.attach({ schedule, group: null, device, actions });
  const tensor = randn([4]);
  const steps = 2000;
  const time = cpuTime(() => {
    for (let step = 0; step < steps; step++) {
      recorder.beginStep(true);
      for (let i = 0; i < actions; i++) {
        recorder.begin(i);
        recorder.received([tensor]);
        recorder.end(i);
      }
      recorder.endStep();
    }
  });
  return time / steps;
}

/** @param {number} width @param {number} rows */
function measure(width, rows) {
  const x = randn([rows * MICROBATCHES, width]);
  const make = (/** @type {boolean} */ record) => {
    const stages = Array.from({ length: STAGES }, (_, i) => {
      const module = new nn.Sequential(new nn.Linear(width, width), new nn.GELU(), new nn.Linear(width, width));
      return new PipelineStage(module, i, STAGES);
    });
    const lossFn = (/** @type {import('@pipewright/torch').Tensor} */ y) => y.square().mean();
    return new PipelineRuntime(stages, schedule, { lossFn, record });
  };
  const [off, on] = [make(false), make(true)];
  const step = (/** @type {PipelineRuntime} */ runtime) => scope(() => void runtime.step(x, { returnOutputs: false }));
  const steps = Math.max(5, Math.round(300 / cpuTime(() => [off, on, off, on].forEach(step))));
  /** @type {{ off: number[], on: number[] }} */
  const times = { off: [], on: [] };
  for (let round = 0; round < ROUNDS; round++) {
    times.off.push(cpuTime(() => Array.from({ length: steps }, () => step(off))) / steps);
    times.on.push(cpuTime(() => Array.from({ length: steps }, () => step(on))) / steps);
  }
  const actions = (on.recorder?.timeline() ?? []).length;
  const own = ownCost(actions);
  const [without, recorded] = [median(times.off), median(times.on)];
  return {
    'width x rows': `${width} x ${rows}`,
    actions,
    'step, ms': Number(without.toFixed(3)),
    'with recorder': Number((recorded / without).toFixed(4)),
    'its own work, us': Number((1000 * own).toFixed(1)),
    'share of the step': `${((100 * own) / without).toFixed(2)}%`,
  };
}

console.table([measure(64, 8), measure(128, 128), measure(512, 128)]);
