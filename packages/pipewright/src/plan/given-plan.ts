/** @file The plan that a run was started with: `pipewright run --plan plan.json train.ts`. */
import { readFileSync } from 'node:fs';
import { type PipelinePlan, readPlan } from '@pipewright/schedule';
import { checkArgument } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';

/** The variable that names the file of the plan. */
const PLAN_FILE = 'PIPEWRIGHT_PLAN';

/**
 * The plan of this run; null where it was started without one.
 *
 * @example const plan = givenPlan(); const pipe = pipeline(model, [x], plan === null ? { stages: 4 } : { plan })
 */
export function givenPlan(env: NodeJS.ProcessEnv = process.env): PipelinePlan | null {
  const isEnv = typeof (env as unknown) === 'object' && env !== null;
  checkArgument('givenPlan', isEnv, ['the environment', env], 'an object such as process.env');
  const file: unknown = env[PLAN_FILE] ?? '';
  checkArgument('givenPlan', typeof file === 'string', [PLAN_FILE, file], 'the name of a file');
  if (typeof file !== 'string' || file === '') return null;
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    throw new PipelineError(
      'BAD_OPTION',
      `givenPlan: cannot read ${file}, which ${PLAN_FILE} names: ${(cause as Error).message}`,
    );
  }
  return readPlan(text);
}
