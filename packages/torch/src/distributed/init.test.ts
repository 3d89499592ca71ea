/** @file The default group: where its settings come from, and what is said when they are missing. */
import { afterEach, expect, test, vi } from 'vitest';
import { tensor } from '../index.ts';
import * as distributed from './index.ts';

afterEach(() => {
  distributed.destroyProcessGroup();
  vi.unstubAllEnvs();
});

function environment(values: Record<string, string | undefined>): void {
  const all = {
    RANK: undefined,
    WORLD_SIZE: undefined,
    MASTER_ADDR: undefined,
    MASTER_PORT: undefined,
    LOCAL_RANK: undefined,
    PIPEWRIGHT_THREAD_GROUP: undefined,
  };
  for (const [name, value] of Object.entries({ ...all, ...values })) vi.stubEnv(name, value);
}

test('the time limit and the rank may come from the environment', () => {
  // The port follows from the job: another run of these tests on this machine has another one.
  const job = { SLURM_JOB_NODELIST: 'localhost', SLURM_JOB_ID: String(process.pid) };
  const slurm = { SLURM_PROCID: '0', SLURM_NTASKS: '1', ...job };
  environment({ ...slurm, PIPEWRIGHT_TIMEOUT_MS: '61234' });
  const group = distributed.initProcessGroup();
  expect([group.rank, group.size, group.timeoutMs]).toEqual([0, 1, 61_234]);
  distributed.destroyProcessGroup();
  environment({ ...slurm, PIPEWRIGHT_TIMEOUT_MS: 'soon' });
  expect(() => distributed.initProcessGroup()).toThrow(
    "PIPEWRIGHT_TIMEOUT_MS is 'soon'; give milliseconds, more than 0",
  );
});

test('missing settings are named', () => {
  environment({});
  expect(() => distributed.initProcessGroup()).toThrow(
    'initProcessGroup: neither the option rank nor the variable RANK is set; start the program with npx pipewright run -n 2 FILE',
  );
  environment({ RANK: '0', WORLD_SIZE: '1' });
  expect(() => distributed.initProcessGroup()).toThrow(
    'neither the option masterAddr nor the variable MASTER_ADDR is set',
  );
  environment({ RANK: 'first', WORLD_SIZE: '1' });
  expect(() => distributed.initProcessGroup()).toThrow("RANK is 'first'; it must be a whole number, at least 0");
  expect(() => distributed.initProcessGroup({ rank: 0, worldSize: 1, backend: 'mpi' as never })).toThrow(
    "backend is mpi; give 'gloo', 'nccl', 'cpu:gloo,cuda:nccl' or 'thread'",
  );
  expect(() => distributed.initProcessGroup({ backend: 'thread', rank: 0, worldSize: 1 })).toThrow(
    'give the name of the thread group, or start the threads with spawnThreads',
  );
  expect(() => distributed.initProcessGroup({ wordSize: 1 } as object)).toThrow("did you mean 'worldSize'?");
  expect(() => distributed.getRank()).toThrow('there is no default group yet; call initProcessGroup() first');
  expect(distributed.isInitialized()).toBe(false);
});

test('a rank outside of the world is refused at once, not after the time limit', () => {
  environment({ RANK: '2', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: '9' });
  expect(() => distributed.initProcessGroup({ timeoutMs: 3_600_000 })).toThrow(
    'initProcessGroup: rank is 2; in a group of 2 it is from 0 to 1',
  );
});

test('with a secret, a rank of another run on the same port is refused at once', () => {
  const run = (name: string) => ({ secret: `the secret of ${name}`, timeoutMs: 3_600_000 });
  const store = distributed.tcpStore('127.0.0.1', 0, { server: true, ranks: 2, ...run('one') });
  environment({ RANK: '1', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(store.port) });
  expect(() => distributed.initProcessGroup(run('another'))).toThrow(/belongs to another run/);
  environment({ RANK: '1', WORLD_SIZE: '3', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(store.port) });
  expect(() => distributed.initProcessGroup(run('one'))).toThrow(/this rank has a WORLD_SIZE of 3, rank 0 has 2/);
  store.close();
});

test('nccl without CUDA says so', () => {
  environment({});
  const store = distributed.hashStore('nccl');
  expect(() => distributed.initProcessGroup({ backend: 'nccl', rank: 0, worldSize: 1, store })).toThrow(/NCCL|addon/);
});

test('a gloo group of one, and the functions of torch.distributed on it', () => {
  environment({ RANK: '0', WORLD_SIZE: '1', LOCAL_RANK: '0' });
  const group = distributed.initProcessGroup({ store: distributed.hashStore('one') });
  expect([
    distributed.getRank(),
    distributed.getWorldSize(),
    distributed.getBackend(),
    distributed.getLocalRank(),
  ]).toEqual([0, 1, 'gloo', 0]);
  expect(distributed.getDefaultGroup()).toBe(group);
  expect(() => distributed.initProcessGroup()).toThrow(
    "the default group is 'default' already; call destroyProcessGroup() first",
  );
  const x = tensor([1, 2], { dtype: 'float32' });
  distributed.allReduce(x, { op: 'avg' });
  distributed.broadcast(x, 0);
  distributed.reduce(x, 0);
  expect(x.toArray()).toEqual([1, 2]);
  expect(distributed.allGather(x).map((t) => t.toArray())).toEqual([[1, 2]]);
  expect(distributed.reduceScatter([x]).toArray()).toEqual([1, 2]);
  expect(distributed.allToAll([x], { group }).map((t) => t.toArray())).toEqual([[1, 2]]);
  expect(distributed.allGatherObject({ a: 1 })).toEqual([{ a: 1 }]);
  expect(distributed.broadcastObject('x', 0)).toBe('x');
  expect(distributed.barrier({ asyncOp: true })).toBeInstanceOf(distributed.Work);
  expect(() => distributed.send(x, 0)).toThrow('send: rank 0 cannot send to itself over gloo; use channel(0)');
  expect(() => distributed.send(x, 1)).toThrow("send: 1 is not a rank of group 'default', which has ranks 0 to 0");
  const only = distributed.newGroup([0], { name: 'mine' });
  expect([only?.name, only?.size]).toEqual(['default/mine#0', 1]);
  only?.close();
});

test('point to point on the default group of two threads in one', () => {
  environment({ RANK: '0', WORLD_SIZE: '2', PIPEWRIGHT_THREAD_GROUP: 'pair' });
  const mine = distributed.initProcessGroup();
  const other = distributed.threadGroup({ name: 'pair', rank: 1, size: 2 });
  expect(mine.backend).toBe('thread');
  distributed.send(tensor([5]), 1, { tag: 2 });
  expect(other.recv(tensor([0]), 0, { tag: 2 }).toArray()).toEqual([5]);
  other.send(tensor([6]), 0);
  expect(distributed.recv(tensor([0]), 1).toArray()).toEqual([6]);
  const works = distributed.batchIsendIrecv([
    { kind: 'send', tensor: tensor([7]), peer: 1 },
    { kind: 'recv', tensor: tensor([0]), peer: 1, tag: 1 },
  ]);
  other.isend(other.recv(tensor([0]), 0).add(1), 0, { tag: 1 }).wait();
  expect(
    works
      .map((work) => work.wait())
      .map((value) => (value === undefined ? 'sent' : (value as { toArray(): unknown }).toArray())),
  ).toEqual(['sent', [8]]);
  distributed.isend(tensor([1]), 1).wait();
  expect(distributed.irecv(tensor([0]), 1).isCompleted()).toBe(false);
  distributed.sendObject({ k: 1 }, 1);
  expect(other.recvObject(0)).toEqual({ k: 1 });
  other.sendObject([2], 0);
  expect(distributed.recvObject(1)).toEqual([2]);
  other.close();
});
