// @ts-check
/** @file Lanes between two processes: values, order, memory, capture, collectives; `node tests/gpu/lanes-test.mjs`. */
import { strict as assert } from 'node:assert';
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { cuda, distributed, full, scope, tensor } from '@pipewright/torch';
import { rankEnvironment } from './rank-environment.mjs';

const RANKS = 2;

/** @param {number} rank */
function main(rank) {
  const group = distributed.initProcessGroup({ timeoutMs: 30_000 });
  assert.equal(group.backend, 'cpu:gloo,cuda:nccl');
  const say = (/** @type {string} */ text) => rank === 0 && console.log(text);
  const at = performance.now();
  const out = group.lane(1 - rank, { name: `${rank}>${1 - rank}`, sends: true });
  const back = group.lane(1 - rank, { name: `${1 - rank}>${rank}`, sends: false });
  out.ready();
  back.ready();
  say(`PASS lanes are connected (${Math.round(performance.now() - at)} ms)`);

  /** @type {import('@pipewright/torch').distributed.TensorFormat[]} */
  const format = [{ dtype: tensor([1], { dtype: 'float64' }).dtype, shape: [64, 64] }];
  // One sends first, the other receives first: also a GPU that did one thing after the other would come to an end.
  const exchange = (
    /** @type {import('@pipewright/torch').distributed.TensorFormat[]} */ format,
    /** @type {import('@pipewright/torch').Tensor} */ value,
  ) => {
    if (rank === 0) out.send([value]);
    const got = back.recv(format);
    if (rank === 1) out.send([value]);
    got.wait();
    return /** @type {import('@pipewright/torch').Tensor} */ (got.tensors[0]);
  };
  for (let i = 0; i < 200; i++)
    scope(() => {
      const value = exchange(format, full([64, 64], 1000 * rank + i, { dtype: 'float64', device: 'cuda' }));
      assert.equal(value.device, `cuda:${cuda.currentDevice()}`);
      if (i % 20 === 19) assert.equal(value.mean().item(), 1000 * (1 - rank) + i);
    });
  out.join();
  cuda.synchronize();
  say('PASS 200 messages both ways, in order');

  // What comes first is used last, in another stream than what comes after it; it comes late, into memory with other values.
  scope(() => {
    const side = new cuda.Stream();
    full([2, 64, 64], -1, { dtype: 'float64', device: 'cuda' }).dispose();
    if (rank === 0) {
      const busy = full([4096, 4096], 0, { device: 'cuda' });
      for (let i = 0; i < 100; i++) busy.matmul(busy).dispose();
      for (const value of [7, 8]) out.send([full([64, 64], value, { dtype: 'float64', device: 'cuda' })]);
      out.join();
    } else {
      const [first, second] = [back.recv(format), back.recv(format)];
      cuda.withStream(side, () => second.wait());
      first.wait();
      assert.equal(/** @type {import('@pipewright/torch').Tensor} */ (first.tensors[0]).mean().item(), 7);
      cuda.currentStream().waitStream(side);
      assert.equal(/** @type {import('@pipewright/torch').Tensor} */ (second.tensors[0]).mean().item(), 8);
    }
  });
  say('PASS each message is waited for by the stream that uses it');

  cuda.resetPeakMemoryStats();
  const before = cuda.memoryAllocated();
  for (let i = 0; i < 100; i++)
    scope(() => {
      exchange(
        [{ dtype: /** @type {any} */ (format[0]).dtype, shape: [1024, 128] }],
        full([1024, 128], i, { dtype: 'float64', device: 'cuda' }),
      );
    });
  out.join();
  cuda.synchronize();
  const grown = (cuda.maxMemoryAllocated() - before) / 2 ** 20;
  assert.ok(grown < 12, `${grown} MiB`);
  assert.equal(cuda.memoryAllocated(), before);
  say(`PASS memory of messages is bounded (${grown.toFixed(1)} MiB for 100 MiB of messages)`);

  const x = full([64, 64], 1, { dtype: 'float64', device: 'cuda' });
  const sum = full([], 0, { dtype: 'float64', device: 'cuda' });
  const graph = new cuda.CudaGraph();
  graph.capture(
    () =>
      scope(() => {
        sum.copy_(exchange(format, x.mul(2)).sum());
        out.join();
        back.join();
      }),
    { warmup: 1 },
  );
  for (let i = 1; i <= 50; i++) {
    x.fill_(i + 100 * rank);
    graph.replay();
    out.mark();
    if (i % 10 === 0) assert.equal(sum.item(), 2 * (i + 100 * (1 - rank)) * 64 * 64);
  }
  const start = performance.now();
  for (let i = 0; i < 200; i++) graph.replay();
  cuda.synchronize();
  say(`PASS captured with messages both ways (${(((performance.now() - start) / 200) * 1000).toFixed(0)} us a replay)`);

  const cpu = tensor([rank + 1], { dtype: 'float64' });
  const gpu = tensor([rank + 1], { dtype: 'float64', device: 'cuda' });
  group.allReduce(cpu);
  group.allReduce(gpu);
  assert.deepEqual([cpu.toArray(), gpu.toArray()], [[3], [3]]);
  say('PASS a collective of each device');
  group.channel(1 - rank).send(7, full([3], rank, { device: 'cuda' }));
  const staged = group.channel(1 - rank).recv(7);
  assert.equal(staged.device, `cuda:${cuda.currentDevice()}`);
  assert.deepEqual(staged.toArray(), [1 - rank, 1 - rank, 1 - rank]);
  const many = Array.from({ length: 100 }, (_, i) =>
    i % 3 === 2 ? tensor([i]) : full([1 + i], i, { device: 'cuda' }),
  );
  group.channel(1 - rank).sendMessage(8, { tensors: many });
  const come = group.channel(1 - rank).recvMessage(8).tensors;
  assert.deepEqual(
    come.map((each) => [each?.device, each?.shape, each?.max().item()]),
    many.map((each, i) => [each.device, each.shape, i]),
  );
  say('PASS a channel stages tensors of a GPU, also many in one message');
  const times = [4 << 10, 1 << 20].map((bytes) => {
    const big = [{ dtype: /** @type {any} */ (format[0]).dtype, shape: [bytes / 8] }];
    const turn = () =>
      scope(() => {
        if (rank === 0) out.send([full([bytes / 8], 1, { dtype: 'float64', device: 'cuda' })]);
        const got = back.recv(big);
        got.wait();
        if (rank === 1) out.send(got.tensors);
      });
    for (let i = 0; i < 10; i++) turn();
    out.join();
    cuda.synchronize();
    const from = performance.now();
    for (let i = 0; i < 100; i++) turn();
    out.join();
    cuda.synchronize();
    return `${bytes >> 10} KiB ${((performance.now() - from) * 5).toFixed(0)} us`;
  });
  say(`     one way: ${times.join(', ')}`);
  distributed.destroyProcessGroup();
}

if (process.argv[2] === undefined) {
  const port = await distributed.freePort();
  const codes = await Promise.all(
    Array.from({ length: RANKS }, (_, rank) => {
      const child = spawn(process.execPath, [fileURLToPath(import.meta.url), String(rank)], {
        stdio: 'inherit',
        timeout: 45_000,
        killSignal: 'SIGKILL',
        env: { ...process.env, ...rankEnvironment(rank, RANKS, port) },
      });
      return new Promise((resolve) => child.on('close', resolve));
    }),
  );
  console.log(
    codes.every((code) => code === 0) ? 'PASS lanes' : `FAIL lanes: the ranks ended with ${codes.join(' and ')}`,
  );
  process.exitCode = codes.every((code) => code === 0) ? 0 : 1;
} else main(Number(process.argv[2]));
