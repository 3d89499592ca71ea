/**
 * @file Who a process is among the ranks, from the variables that launchers set: torchrun's, else those of Slurm, Open MPI
 * or other MPI launchers; and what those who launch need without the engine: a port, addresses, interfaces, errors as texts.
 */
import { checkObject } from '../base/checks.ts';
import { LOCAL_RANK_VARIABLES } from '../base/local-rank.ts';

export { firstCause, packThrown, type Thrown } from '../base/thrown.ts';
export { freePort } from './free-port.ts';
export { addressOf, interfaceOf, isLoopback, loopbackInterface } from './network.ts';

/** torchrun's variables. */
export type RankVariable = 'RANK' | 'WORLD_SIZE' | 'LOCAL_RANK' | 'LOCAL_WORLD_SIZE' | 'MASTER_ADDR' | 'MASTER_PORT';

type Environment = Readonly<Record<string, string | undefined>>;

/** Where each variable may come from, the first that is set. */
const sources: Readonly<Record<RankVariable, readonly string[]>> = {
  RANK: ['RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK', 'PMI_RANK'],
  WORLD_SIZE: ['WORLD_SIZE', 'SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE'],
  LOCAL_RANK: LOCAL_RANK_VARIABLES,
  LOCAL_WORLD_SIZE: [...['LOCAL_WORLD_SIZE', 'SLURM_NTASKS_PER_NODE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'MPI_LOCALNRANKS']],
  MASTER_ADDR: ['MASTER_ADDR'],
  MASTER_PORT: ['MASTER_PORT'],
};

/**
 * torchrun's variables with what other launchers say where they are absent. Under Slurm, rank 0 is on the first host of
 * the job and its port follows from the number of the job.
 *
 * @example rankEnvironment({ SLURM_PROCID: '3', SLURM_NTASKS: '8' }).RANK // '3'
 */
export function rankEnvironment(env: Environment = process.env): Partial<Record<RankVariable, string>> {
  checkObject('rankEnvironment', 'the environment', env);
  const found: Partial<Record<RankVariable, string>> = {};
  for (const [name, variables] of Object.entries(sources) as [RankVariable, readonly string[]][]) {
    const variable = variables.find((one) => (env[one] ?? '') !== '');
    if (variable !== undefined) found[name] = env[variable]!;
  }
  const hosts = env['SLURM_STEP_NODELIST'] ?? env['SLURM_JOB_NODELIST'] ?? '';
  if (found.MASTER_ADDR === undefined && hosts !== '') found.MASTER_ADDR = firstHost(hosts);
  const job = Number(env['SLURM_JOB_ID'] ?? Number.NaN);
  if (found.MASTER_PORT === undefined && Number.isSafeInteger(job))
    found.MASTER_PORT = String(20_000 + ((job * 10 + Number(env['SLURM_STEP_ID'] ?? 0)) % 10_000));
  return found;
}

/** The first host of a Slurm list. @example firstHost('node[003-005,9],gpu1') // 'node003' */
export function firstHost(list: string): string {
  const {
    before = '',
    first = '',
    after = '',
  } = /^(?<before>[^,[]*)(?:\[(?<first>[^\],-]*)[^\]]*\])?(?<after>[^,]*)/.exec(list)?.groups ?? {};
  return `${before}${first}${after}`;
}
