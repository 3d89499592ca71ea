// @ts-check
/**
 * @file Four ranks of tests, two stages on two ranks each, of which the last has nothing to divide: no parameters, or only frozen
 * ones. The gradients of the first stage, and what ranks are told that leave the last stage out.
 */
import { distributed, manualSeed, nn, randn, scope, setDefaultDtype } from '@pipewright/torch';
import { fullyShard, initDeviceMesh, PipelineRuntime, PipelineStage, replicate } from 'pipewright';
import { runAsProgram } from '../program.mjs';

/** @typedef {{ wrap: 'replicate' | 'optimizer' | 'gradients' | 'parameters', last: 'frozen' | 'empty', schedule: string, stages: number, leftOut?: boolean }} Case */

const ROWS = 10;

/** @param {Case} one @param {number} index */
function layer({ last, stages }, index) {
  manualSeed(index + 1);
  if (index < stages - 1) return new nn.Sequential(new nn.Linear(3, 3), new nn.Tanh());
  return last === 'empty' ? new nn.Sequential(new nn.Tanh()) : new nn.Linear(3, 3).requiresGrad_(false);
}

function batch() {
  manualSeed(50);
  return { x: randn([ROWS, 3]), y: randn([ROWS, 3]) };
}

/** The gradients of plain training. @param {Case} one @returns {number[][]} */
export function plain(one) {
  setDefaultDtype('float64');
  const model = new nn.Sequential(...Array.from({ length: one.stages }, (_, i) => layer(one, i)));
  const { x, y } = batch();
  nn.functional.mseLoss(/** @type {import('@pipewright/torch').Tensor} */ (model.forward(x)), y).backward();
  return gradsOf(model);
}

/** @param {nn.Module} module */
const gradsOf = (module) =>
  module
    .parameters()
    .flatMap(({ grad }) => (grad === null ? [] : [/** @type {number[]} */ (grad.flatten().toArray())]));

/** @param {Case} one */
function train(one) {
  setDefaultDtype('float64');
  const mesh = initDeviceMesh('cpu', [2, 2], ['pp', 'dp']);
  const [rank, replica] = [mesh.getLocalRank('pp'), mesh.getLocalRank('dp')];
  const own = Array.from({ length: one.stages }, (_, i) => i).filter((i) => i % 2 === rank);
  const stages = own.map((index) => {
    const module = layer(one, index);
    if (!(one.leftOut && index === one.stages - 1)) {
      if (one.wrap === 'replicate') replicate(module, { mesh: mesh.get('dp') });
      else fullyShard(module, { mesh: mesh.get('dp'), level: one.wrap });
    }
    return new PipelineStage(module, index, one.stages, { group: mesh.getGroup('pp') });
  });
  try {
    const runtime = new PipelineRuntime(stages, /** @type {'1F1B'} */ (one.schedule), {
      microbatches: 2,
      lossFn: nn.functional.mseLoss,
    });
    const { x, y } = batch();
    const rows = replica === 0 ? '0:4' : `4:${ROWS}`;
    runtime.step(x.at(rows), { target: y.at(rows) });
    return { grads: stages.map(({ stageIndex, module }) => [stageIndex, gradsOf(module)]), replica };
  } catch (error) {
    return { error: `${/** @type {{ code?: string }} */ (error).code} ${/** @type {Error} */ (error).message}` };
  }
}

/** @param {Case[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  return cases.map((one) => scope(() => train(one)));
}

await runAsProgram(import.meta.url, main);
