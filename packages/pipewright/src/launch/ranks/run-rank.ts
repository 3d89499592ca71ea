/** @file A process that another launcher has started as a rank: torchrun, srun, mpirun, Kubernetes. */
import { rankEnvironment } from '@pipewright/torch/environment';
import { endGroup, runScript } from './run-script.ts';
import { scriptUrl } from './script-url.ts';

/** Whether another launcher has set the environment variables of a rank for this process. */
export function isRank(env: NodeJS.ProcessEnv = process.env): boolean {
  const { RANK, WORLD_SIZE } = rankEnvironment(env);
  return RANK !== undefined && WORLD_SIZE !== undefined;
}

/**
 * Runs a script in this process as the rank that the environment says, TypeScript included, and calls its `main`.
 *
 * @example await runRank('train.ts', { args: ['--steps', '10'] }) // under torchrun or srun
 */
export async function runRank(
  script: string | URL,
  options: { readonly args?: readonly string[] } = {},
): Promise<unknown> {
  const url = scriptUrl('runRank', script);
  Object.assign(process.env, rankEnvironment());
  const value = await runScript({ script: url, args: options.args ?? [], data: undefined });
  endGroup();
  return value;
}
