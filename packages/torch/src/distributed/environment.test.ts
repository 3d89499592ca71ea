/** @file Who a process is, from the variables of several launchers. */
import { expect, test } from 'vitest';
import { firstHost, rankEnvironment } from './environment.ts';

test("torchrun's variables come first", () => {
  const torchrun = { RANK: '1', WORLD_SIZE: '2', LOCAL_RANK: '1', MASTER_ADDR: 'here', MASTER_PORT: '29500' };
  expect(rankEnvironment({ ...torchrun, SLURM_PROCID: '0', SLURM_NTASKS: '1', SLURM_JOB_NODELIST: 'there' })).toEqual(
    torchrun,
  );
  expect(rankEnvironment({ RANK: '' })).toEqual({});
});

test('Slurm, with the first host and a port of the job', () => {
  const slurm = {
    SLURM_PROCID: '5',
    SLURM_NTASKS: '8',
    SLURM_STEP_NUM_TASKS: '6',
    SLURM_LOCALID: '1',
    SLURM_NTASKS_PER_NODE: '2',
    SLURM_JOB_NODELIST: 'gpu[07-09],other',
    SLURM_JOB_ID: '123456',
    SLURM_STEP_ID: '2',
  };
  expect(rankEnvironment(slurm)).toEqual({
    RANK: '5',
    WORLD_SIZE: '6',
    LOCAL_RANK: '1',
    LOCAL_WORLD_SIZE: '2',
    MASTER_ADDR: 'gpu07',
    MASTER_PORT: '24562',
  });
});

test('Open MPI and MPICH', () => {
  expect(
    rankEnvironment({ OMPI_COMM_WORLD_RANK: '2', OMPI_COMM_WORLD_SIZE: '4', OMPI_COMM_WORLD_LOCAL_RANK: '0' }),
  ).toEqual({ RANK: '2', WORLD_SIZE: '4', LOCAL_RANK: '0' });
  expect(rankEnvironment({ PMI_RANK: '2', PMI_SIZE: '4' })).toEqual({ RANK: '2', WORLD_SIZE: '4' });
});

test.each([
  ['one', 'one'],
  ['a,b', 'a'],
  ['node[001-004,007]', 'node001'],
  ['node[3,5]-ib,other', 'node3-ib'],
])('the first of %s is %s', (list, host) => expect(firstHost(list)).toBe(host));
