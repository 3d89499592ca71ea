// @ts-check
/** @file What ranks hold for backwards, predicted from their stages measured alone and counted in a run; rank 0 prints both, a line for each schedule. */
import { buildSchedule, scheduleDefinitions } from '@pipewright/schedule';
import { heldPeaks } from '@pipewright/schedule/internal';
import { distributed, manualSeed, nn, randn, scope } from '@pipewright/torch';
import { measureStages, PipelineRuntime, pipeline, Recorder, traceModule } from 'pipewright';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

/** Layers beside their inputs, whose gradients are shared, and layers that keep no input. */
class Model extends nn.Module {
  /** @param {boolean} residual @param {number} width */
  constructor(residual, width) {
    super();
    this.residual = residual;
    this.layers = new nn.ModuleList(
      Array.from({ length: 8 }, (_, i) => {
        const [from, to] = residual ? [width, width] : [width + 2 * i, width + 2 + 2 * i];
        return new nn.Sequential(
          new nn.Linear(from, 24),
          residual ? new nn.GELU() : new nn.Tanh(),
          new nn.Linear(24, to),
        );
      }),
    );
  }

  /** @param {Tensor} x */
  forward(x) {
    let y = x;
    for (const layer of this.layers) y = this.residual ? y.add(layer.forward(y)) : layer.forward(y).relu();
    return y;
  }
}

/** @type {(output: Tensor, target: Tensor) => Tensor} */
const lossFn = (output, target) => output.sub(target).square().mean();

/** Runs every schedule, with microbatches of `rows` and layers of about `width`. @param {{ rows: number, width: number }} size */
export function main({ rows, width }) {
  const group = distributed.initProcessGroup();
  for (const residual of [true, false]) {
    manualSeed(1);
    const model = new Model(residual, width);
    const [x, target] = [randn(8 * rows, width), randn(8 * rows, residual ? width : width + 16)];
    const [mb, mbTarget] = [x.narrow(0, 0, rows), target.narrow(0, 0, rows)];
    const program = traceModule(model, [mb]);
    for (const { name, hasBackward } of scheduleDefinitions)
      for (const again of [false, true]) {
        if (!hasBackward || (again && !['1F1B', 'ZBVZeroBubble'].includes(name))) continue;
        const schedule = buildSchedule(name, { ranks: group.size, microbatches: 8 });
        const recompute = Array.from({ length: schedule.stages }, (_, stage) => again && stage % 2 === 0);
        const pipe = pipeline(program, { stages: schedule.stages, recompute });
        const measured = measureStages(pipe, [mb], { lossFn, target: mbTarget, rounds: 1, schedule, group });
        const memory = measured.map((each) => each.memory);
        const recorder = new Recorder();
        const stages = schedule.stagesOf(group.rank).map((stage) => pipe.buildStage(stage));
        const runtime = new PipelineRuntime(stages, schedule, { lossFn, record: recorder });
        for (let step = 0; step < 3; step++) {
          // Gradients are there in the second step; in the others backwards make them, as after zeroGrad().
          if (step === 2) for (const parameter of model.parameters()) parameter.grad = null;
          scope(() => runtime.step(x, { target, returnOutputs: false }));
        }
        const recording = recorder.gather();
        if (recording !== null && !memory.includes(null)) {
          const predicted = heldPeaks(runtime.schedule, /** @type {never} */ (memory));
          const counted = recording.steps.map(({ ranks }) => ranks.map(({ heldBytes }) => heldBytes));
          console.log(JSON.stringify({ name, residual, again, predicted, counted: counted[1], cleared: counted[2] }));
        }
        runtime.dispose();
        for (const parameter of model.parameters()) parameter.grad = null;
      }
  }
}
