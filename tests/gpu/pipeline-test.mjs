// @ts-check
/** @file Pipelines on a GPU against plain training there: schedules, thread ranks on one GPU, captured steps. */
import { isMainThread } from 'node:worker_threads';
import { buildSchedule, findSchedule } from '@pipewright/schedule';
import { distributed, nn, optim, scope, tensor } from '@pipewright/torch';
import { PipelineRuntime, PipelineStage } from 'pipewright';

const WIDTH = 16;
const MICROBATCHES = 8;
const STEPS = 4;
const device = 'cuda';

/** @param {number[]} shape @param {number} seed */
function values(shape, seed) {
  const count = shape.reduce((a, b) => a * b, 1);
  const numbers = Array.from({ length: count }, (_, i) => 0.3 * Math.sin(0.7 * i + 0.3 * seed));
  return tensor(numbers, { dtype: 'float64' }).reshape(shape).to({ device });
}

/** @param {number} index */
function makeStage(index) {
  const module = new nn.Sequential(new nn.Linear(WIDTH, WIDTH), new nn.GELU(), new nn.LayerNorm(WIDTH)).double();
  module.to({ device });
  module.parameters().forEach((parameter, i) => {
    parameter
      .requiresGrad_(false)
      .copy_(values(parameter.shape, 10 * index + i))
      .requiresGrad_(true);
  });
  return module;
}

/** @param {number} step */
const batchOf = (step) => ({ x: values([24, WIDTH], step), y: values([24, WIDTH], 50 + step) });
/** @param {import('@pipewright/torch').Tensor} output @param {import('@pipewright/torch').Tensor} target */
const lossFn = (output, target) => nn.functional.mseLoss(output, target);
/** @param {import('@pipewright/torch').nn.Module[]} modules */
const weightsOf = (modules) => modules.flatMap((module) => module.parameters().flatMap(numbersOf));

/** @param {number} stages */
function plain(stages) {
  const modules = Array.from({ length: stages }, (_, i) => makeStage(i));
  const optimizer = new optim.SGD(
    modules.flatMap((m) => m.parameters()),
    { lr: 0.1 },
  );
  for (let step = 0; step < STEPS; step++) {
    optimizer.zeroGrad();
    for (const part of [0, 1]) {
      const { x, y } = batchOf(step + 10 * part);
      let h = x;
      for (const module of modules) h = module.forward(h);
      lossFn(h, y).backward();
    }
    optimizer.step();
  }
  return modules.map((module) => weightsOf([module]));
}

/** @param {{ schedule: string, ranks: number, stages: number, capture: boolean }} setting */
export function main({ schedule, ranks, stages, capture }) {
  const group = ranks > 1 ? distributed.initProcessGroup() : undefined;
  const rank = group?.rank ?? 0;
  const mine = buildSchedule(schedule, { ranks, stages, microbatches: MICROBATCHES }).stagesOf(rank);
  const modules = mine.map(makeStage);
  const runtime = new PipelineRuntime(
    modules.map((module, i) => new PipelineStage(module, /** @type {number} */ (mine[i]), stages, { group })),
    findSchedule(schedule).name,
    { microbatches: MICROBATCHES, lossFn, capture },
  );
  const optimizer = new optim.SGD(
    modules.flatMap((m) => m.parameters()),
    { lr: 0.1 },
  );
  for (let step = 0; step < STEPS; step++)
    scope(() => {
      optimizer.zeroGrad();
      for (const part of [0, 1]) {
        const { x, y } = batchOf(step + 10 * part);
        runtime.step(...(mine.includes(0) ? [x] : []), mine.includes(stages - 1) ? { target: y } : {});
      }
      optimizer.step();
    });
  return {
    weights: mine.map((s, i) => [s, weightsOf([/** @type {nn.Module} */ (modules[i])])]),
    problem: runtime.captureProblem,
  };
}

/** A loss that is not finite is noticed in replays too, and in no other step. @returns {string | null} what is wrong */
function skipping() {
  const modules = [makeStage(0)];
  const stage = new PipelineStage(/** @type {nn.Module} */ (modules[0]), 0, 1);
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: MICROBATCHES, lossFn, capture: true });
  const optimizer = new optim.SGD(
    modules.flatMap((m) => m.parameters()),
    { lr: 0.1 },
  );
  const bad = [4, 6];
  for (let step = 0; step < 8; step++) {
    const { skipped } = scope(() => {
      optimizer.zeroGrad();
      const { x, y } = batchOf(step);
      runtime.step(x, { target: bad.includes(step) ? y.mul(Number.NaN) : y });
      return runtime.stepOptimizer(optimizer);
    });
    if (skipped !== bad.includes(step)) return `step ${step} was ${skipped ? '' : 'not '}skipped`;
  }
  return runtime.captureProblem;
}

/**
 * Steps that change between replays: rows that microbatches share unequally, divisors, what is learned, memory of parameters.
 * Captured and not, the gradients of every step must be the same. @returns {string | null} what is wrong
 */
function changing() {
  const made = [false, true].map((capture) => {
    const module = new nn.Sequential(makeStage(0), new nn.Dropout(0));
    const runtime = new PipelineRuntime(new PipelineStage(module, 0, 1), '1F1B', {
      microbatches: MICROBATCHES,
      lossFn,
      capture,
    });
    return { module, runtime };
  });
  /** @param {number} rows @param {number} step @param {number} [divisor] */
  const compare = (rows, step, divisor) =>
    scope(() => {
      const grads = made.map(({ module, runtime }) => {
        for (const parameter of module.parameters()) parameter.grad = null;
        const [x, target] = [values([rows, WIDTH], step), values([rows, WIDTH], 50 + step)];
        runtime.step(x, { target, ...(divisor === undefined ? {} : { divisor }) });
        return module.parameters().flatMap(({ grad }) => (grad === null ? [Number.NaN] : numbersOf(grad)));
      });
      const [plainGrads = [], captured = []] = grads;
      const most = Math.max(...plainGrads.map((value, i) => Math.abs(value - (captured[i] ?? Number.NaN)) || 0));
      const isSame = plainGrads.every((value, i) => Number.isNaN(value) === Number.isNaN(captured[i] ?? 0));
      return isSame && most < 1e-12 ? null : `${rows} rows, step ${step}: ${most}`;
    });
  /** @type {(string | null)[]} */
  const wrong = [];
  for (let step = 0; step < 12; step++) wrong.push(compare([24, 24, 27, 13][step % 4] ?? 24, step));
  for (let step = 12; step < 18; step++) wrong.push(compare(24, step, 100 + 7 * step));
  for (const { module } of made) module.parameters()[0]?.requiresGrad_(false);
  for (let step = 18; step < 22; step++) wrong.push(compare(24, step));
  for (const { module } of made)
    module.loadStateDict(new Map([...module.stateDict()].map(([name, value]) => [name, value.mul(2)])), {
      assign: true,
    });
  for (let step = 22; step < 26; step++) wrong.push(compare(24, step));
  const problem = made[1]?.runtime.captureProblem ?? null;
  return wrong.find((text) => text !== null) ?? problem;
}

/** @param {import('@pipewright/torch').Tensor} of @returns {number[]} */
const numbersOf = (of) => Array.from(/** @type {Float64Array} */ (of.detach().cpu().flatten().toTypedArray()));

if (isMainThread) {
  let failed = 0;
  const settings = [
    ...['Interleaved1F1B', 'InterleavedZeroBubble', 'LoopedBFS'].flatMap((schedule) =>
      [false, true].map((capture) => ({ schedule, ranks: 1, stages: 4, capture })),
    ),
    ...[false, true].map((capture) => ({ schedule: 'DualPipeV', ranks: 1, stages: 2, capture })),
    ...['1F1B', 'ZB1P'].map((schedule) => ({ schedule, ranks: 2, stages: 2, capture: false })),
    ...['ZBVZeroBubble', 'DualPipeV'].map((schedule) => ({ schedule, ranks: 2, stages: 4, capture: false })),
  ];
  for (const setting of settings) {
    const results =
      setting.ranks === 1
        ? [main(setting)]
        : /** @type {ReturnType<typeof main>[]} */ (
            await distributed.spawnThreads(setting.ranks, new URL(import.meta.url), setting).done
          );
    const expected = plain(setting.stages);
    let most = 0;
    for (const { weights } of results)
      for (const [s, found] of /** @type {[number, number[]][]} */ (weights))
        (expected[s] ?? []).forEach((value, i) => (most = Math.max(most, Math.abs(value - (found[i] ?? Number.NaN)))));
    const problem = setting.capture ? results[0]?.problem : null;
    const ok = most < 1e-12 && !problem;
    if (!ok) failed++;
    console.log(
      `${ok ? 'ok  ' : 'FAIL'} ${JSON.stringify(setting)} largest difference ${most.toExponential(1)} ${problem ?? ''}`,
    );
  }
  const wrong = skipping();
  if (wrong !== null) failed++;
  console.log(
    `${wrong === null ? 'ok  ' : 'FAIL'} captured steps with losses that are not finite: ${wrong ?? 'skipped'}`,
  );
  const changed = changing();
  if (changed !== null) failed++;
  console.log(`${changed === null ? 'ok  ' : 'FAIL'} captured steps that change: ${changed ?? 'equal'}`);
  console.log(`${settings.length + 2 - failed} passed, ${failed} failed`);
  process.exitCode = failed === 0 ? 0 : 1;
}
