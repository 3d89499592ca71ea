// @ts-check
/**
 * @file What ranks do in the test of custom functions that replace forwards and backwards: a stage per rank, so that what
 * the functions hand over is sent to the other rank. Started like `training.mjs`.
 */
import { backward, distributed, float64, manualSeed, nn, randn, scope } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';
import { runAsProgram } from './program.mjs';

/**
 * @typedef {import('@pipewright/torch').Tensor} Tensor
 * @typedef {{ readonly schedule: import('@pipewright/schedule').ScheduleName, readonly replaced: readonly string[], readonly looks?: boolean }} Case
 */

const WIDTH = 6;
const ROWS = 8;
const lossFn = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => output.sub(target).square().sum();

/** @param {Tensor | null} tensor */
const numbers = (tensor) => Array.from(tensor?.detach().flatten().toTypedArray() ?? [], Number);

/**
 * Does the work of `replaced` here, and counts the actions.
 * @param {PipelineRuntime} runtime
 * @param {readonly string[]} replaced
 * @param {boolean} looks whether it only looks at what it would work with, and leaves the work to the runtime
 */
function replace(runtime, replaced, looks) {
  const calls = { F: 0, B: 0 };
  if (replaced.includes('F'))
    runtime.registerCustomFunction('F', (_action, context) => {
      calls.F++;
      if (looks) return void (context.inputs().length > 0 && context.run());
      const module = /** @type {nn.Linear} */ (context.stage.module);
      context.setOutput(module.forward(/** @type {Tensor} */ (context.inputs()[0])));
    });
  if (replaced.includes('B'))
    runtime.registerCustomFunction('B', (_action, context) => {
      calls.B++;
      if (looks) return void (context.backward().outputs.length > 0 && context.run());
      const { outputs, outputGrads, inputs } = context.backward();
      backward(outputs, { gradTensors: outputGrads });
      context.setInputGrads(inputs.map((input) => input.grad));
    });
  return calls;
}

/**
 * The gradients of this rank's stage, and those of plain training.
 * @param {distributed.ProcessGroup} group
 * @param {Case} one
 */
function run(group, { schedule, replaced, looks = false }) {
  return scope(() => {
    manualSeed(3);
    const layers = Array.from({ length: group.size }, () => new nn.Linear(WIDTH, WIDTH).double());
    const [x, target] = [randn(ROWS, WIDTH, { dtype: float64 }), randn(ROWS, WIDTH, { dtype: float64 })];
    const own = /** @type {nn.Linear} */ (layers[group.rank]);
    lossFn(
      layers.reduce((value, layer) => layer.forward(value), x),
      target,
    ).backward();
    const want = own.parameters().map(({ grad }) => numbers(grad));
    for (const parameter of own.parameters()) parameter.grad = null;
    const stage = new PipelineStage(own, group.rank, group.size);
    const runtime = new PipelineRuntime(stage, schedule, { microbatches: 4, lossFn, scaleGrads: false, group });
    const calls = replace(runtime, replaced, looks);
    runtime.step(x, { target });
    const grads = own.parameters().map(({ grad }) => numbers(grad));
    const { inFlight } = stage;
    runtime.dispose();
    return { grads, want, calls, inFlight };
  });
}

/** @param {readonly Case[]} cases */
export function main(cases) {
  const group = distributed.initProcessGroup({ timeoutMs: 100_000 });
  return cases.map((one) => run(group, one));
}

await runAsProgram(import.meta.url, main);
