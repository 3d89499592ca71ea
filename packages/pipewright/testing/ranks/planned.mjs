// @ts-check
/** @file Ranks of tests with plans of several pipelines: their gradients, and what they hold. */

import { distributed, manualSeed, nn, optim, randn, scope, setDefaultDtype } from '@pipewright/torch';
import { PipelineRuntime, pipeline, planStages, withWholeParameters } from 'pipewright';
import { runAsProgram } from './program.mjs';

/** @typedef {import('@pipewright/torch').Tensor} Tensor */

const mse = (/** @type {Tensor} */ output, /** @type {Tensor} */ target) => nn.functional.mseLoss(output, target);
const numbersOf = (/** @type {Tensor} */ value) => Array.from(value.detach().flatten().toTypedArray(), Number);

/** @type {(runtime: PipelineRuntime, optimizer: import('@pipewright/torch').optim.Optimizer, x: Tensor, y: Tensor) => void} */
function train(runtime, optimizer, x, y) {
  for (let step = 0; step < 3; step++)
    scope(() => {
      optimizer.zeroGrad();
      runtime.step(x, { target: y });
      optimizer.step();
    });
}

/** @param {{ plan: import('@pipewright/schedule').PipelinePlan, plain?: boolean }[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  setDefaultDtype('float64');
  return cases.map(({ plan, plain = false }) => {
    manualSeed(7);
    const width = 8;
    const model = new nn.Sequential(
      ...Array.from({ length: 4 }, () => new nn.Sequential(new nn.Linear(width, width), new nn.Tanh())),
    );
    const rows = plan.rows * plan.microbatches * (plan.dataParallel?.replicas ?? 1);
    const [x, y] = [randn([rows, width]), randn([rows, width])];
    if (plain) {
      const optimizer = new optim.SGD(model.parameters(), { lr: 0.1 });
      for (let step = 0; step < 3; step++)
        scope(() => {
          optimizer.zeroGrad();
          mse(model.forward(x), y).backward();
          optimizer.step();
        });
      return { weights: Object.fromEntries(model.namedParameters().map(([name, value]) => [name, numbersOf(value)])) };
    }
    const pipe = pipeline(model, { mbArgs: [x.narrow(0, 0, plan.rows)], plan });
    const { stages, replica, replicas, mesh } = planStages(pipe, plan);
    const share = (/** @type {Tensor} */ all) => /** @type {Tensor} */ (all.chunk(replicas)[replica]);
    const runtime = new PipelineRuntime([...stages], plan, { lossFn: mse });
    const optimizer = new optim.SGD(
      stages.flatMap(({ module }) => module.parameters()),
      { lr: 0.1 },
    );
    train(runtime, optimizer, share(x), share(y));
    /** @type {Record<string, number[]>} */
    const weights = {};
    for (const { module } of stages)
      withWholeParameters(module, () => {
        for (const [name, value] of module.namedParameters()) weights[name] = numbersOf(value);
      });
    const parallel = Reflect.get(runtime, 'parallel');
    return { weights, mesh: mesh?.getCoordinate(), counted: parallel?.parameterPeak, rank: mesh?.getLocalRank('pp') };
  });
}

await runAsProgram(import.meta.url, main);
