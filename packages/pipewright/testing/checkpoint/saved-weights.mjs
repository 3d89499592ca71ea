// @ts-check
/**
 * @file Ranks of tests that write weights: two stages, replicas and shards beside them, after a step of training; each rank says
 * what its stage has in whole, or why it was refused.
 */
import { distributed, manualSeed, nn, ones, optim, scope } from '@pipewright/torch';
import {
  fullyShard,
  initDeviceMesh,
  PipelineRuntime,
  PipelineStage,
  saveWeights,
  withWholeParameters,
} from 'pipewright';
import { runAsProgram } from '../ranks/program.mjs';

/**
 * @typedef {{ folder: string, replicas: number, shards: number, level: 'optimizer' | 'gradients' | 'parameters', columns?: boolean,
 *   rename?: 'collide' | 'own', bad?: number }} Case
 */

/** @param {Case} one */
function save(one) {
  const mesh = initDeviceMesh('cpu', [2, one.replicas, one.shards], ['pp', 'replicas', 'shards']);
  const index = mesh.getLocalRank('pp');
  manualSeed(index);
  const module = new nn.Sequential(new nn.Linear(5, 3), new nn.BatchNorm1d(3), new nn.Linear(3, 5));
  fullyShard(module, {
    mesh: one.replicas > 1 ? mesh.get('replicas', 'shards') : mesh.get('shards'),
    level: one.level,
    shardPlacementFn: (parameter) => (one.columns ? parameter.shape.length - 1 : 0),
  });
  const stage = new PipelineStage(module, index, 2, { group: mesh.getGroup('pp'), names: { '': `layers.${index}` } });
  const runtime = new PipelineRuntime(stage, '1F1B', { microbatches: 2, lossFn: nn.functional.mseLoss });
  const optimizer = new optim.SGD(module.parameters(), { lr: 0.1 });
  runtime.step(ones([4, 5]), { target: ones([4, 5]) });
  optimizer.step();
  /** @type {(name: string) => string | { name: string, transpose: true }} */
  const own = (name) => (name.endsWith('2.weight') ? { name: `m.${name}`, transpose: true } : `m.${name}`);
  const rename = one.rename === 'collide' ? (/** @type {string} */ name) => name.replace(/^layers\.\d/, 'all') : own;
  const folder = one.bad === distributed.getRank() ? `${import.meta.filename}/below` : one.folder;
  try {
    saveWeights(folder, { stages: stage, rename, files: { 'config.json': { layers: 2 } } });
  } catch (error) {
    return { error: `${/** @type {{ code?: string }} */ (error).code} ${/** @type {Error} */ (error).message}` };
  }
  return withWholeParameters(module, () =>
    Object.fromEntries([...module.stateDict()].map(([name, value]) => [`m.layers.${index}.${name}`, value.toArray()])),
  );
}

/** @param {Case[]} cases */
export function main(cases) {
  if (!distributed.isInitialized()) distributed.initProcessGroup();
  return cases.map((one) => scope(() => save(one)));
}

await runAsProgram(import.meta.url, main);
