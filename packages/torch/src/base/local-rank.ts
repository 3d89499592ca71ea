/** @file The rank among those of this machine, as launchers tell it. */

/** The variables that launchers set, torchrun's first. */
export const LOCAL_RANK_VARIABLES: readonly string[] = [
  'LOCAL_RANK',
  'SLURM_LOCALID',
  'OMPI_COMM_WORLD_LOCAL_RANK',
  'MPI_LOCALRANKID',
];

/** The local rank; undefined where no launcher has set one. @example localRank({ SLURM_LOCALID: '3' }) // 3 */
export function localRank(env: Readonly<Record<string, string | undefined>> = process.env): number | undefined {
  const text = LOCAL_RANK_VARIABLES.map((name) => env[name] ?? '').find((value) => value !== '');
  const rank = Number(text);
  return text !== undefined && Number.isInteger(rank) && rank >= 0 ? rank : undefined;
}

/** Whether this thread is a rank beside others in the same process. */
export function isThreadRank(env: Readonly<Record<string, string | undefined>> = process.env): boolean {
  return (env['PIPEWRIGHT_THREAD_GROUP'] ?? '') !== '';
}
