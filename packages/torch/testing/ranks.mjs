// @ts-check
/**
 * @file What a rank of the tests does, the same in a thread and in a process: `main(data)` for spawnThreads, or
 * `node ranks.mjs '<json>'` for a process, which prints its result as one line of JSON.
 */
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { parentPort } from 'node:worker_threads';
import {
  callOp,
  distributed,
  GradScaler,
  initialSeed,
  liveTensors,
  manualSeed,
  nn,
  ones,
  optim,
  rand,
  scope,
  tensor,
  zeros,
} from '../dist/index.js';

/**
 * @typedef {import('../dist/index.js').Tensor} Tensor
 * @typedef {import('../dist/index.js').distributed.ProcessGroup} ProcessGroup
 * @typedef {{ dtype: import('../dist/index.js').DTypeName, shape: number[], strided?: boolean }} Recipe
 * @typedef {Recipe & { kind: string, op: import('../dist/index.js').distributed.ReduceOp, root: number }} Collective
 */

/** An operator that returns one tensor. @param {Parameters<typeof callOp>} call */
const tensorOp = (...call) => /** @type {Tensor} */ (callOp(...call));

/** A flat tensor as numbers. @param {Tensor} t */
const flat = (t) => /** @type {number[]} */ (t.flatten().toArray());

/** What an error of a wait says. @param {unknown} error */
function told(error) {
  const { code, peer, tag, message } = /** @type {Error & { code?: string, peer?: number, tag?: number }} */ (error);
  return { code, peer, tag, message };
}

/** Deterministic small numbers, exact in every dtype. @param {number} seed @param {number} count */
export function numbers(seed, count) {
  return Array.from({ length: count }, (_, i) => ((seed * 7 + i * 5 + ((seed * i) % 3)) % 4) + 1);
}

/** A tensor of a case for one rank. @param {Recipe} recipe @param {number} seed */
function make({ dtype, shape, strided }, seed) {
  const count = shape.reduce((a, b) => a * b, 1);
  const given = tensor(numbers(seed, count), { dtype: 'float64' });
  const values = dtype === 'bool' ? given.gt(2) : given.to(dtype);
  const shaped = values.reshape(shape);
  if (!strided || shape.length < 2) return shaped;
  // The same values in another order in memory.
  return tensorOp('aten::contiguous', [shaped.transpose(0, 1)]).transpose(0, 1);
}

/** The numbers of a tensor of any dtype. @param {Tensor} t */
function plain(t) {
  if (t.dtype.name === 'bool') return flat(t.to('int64'));
  return flat((t.dtype.isComplex ? tensorOp('aten::view_as_real', [t]) : t).to('float64'));
}

/** The numbers of a gradient that must be there. @param {Tensor} t */
function gradOf({ grad }) {
  if (grad === null) throw new Error('there is no gradient');
  return plain(grad);
}

/** Numbers drawn after each seed, directly and by an operator that has no generator argument. @param {number[]} seeds */
export function randomNumbers(seeds) {
  return scope(() =>
    seeds.flatMap((seed) => {
      manualSeed(seed);
      return [
        ...flat(rand([3])),
        tensorOp('aten::dropout', [ones([8]), 0.5, true])
          .sum()
          .item(),
        initialSeed(),
      ];
    }),
  );
}

/**
 * Runs one collective and returns what it gave, flat.
 * @param {ProcessGroup} group
 * @param {Collective} one
 * @param {number} index
 */
function runCase(group, one, index) {
  const seedOf = (/** @type {number} */ rank, part = 0) => index * 31 + rank * 11 + part * 3;
  const { rank, size } = group;
  switch (one.kind) {
    case 'allReduce': {
      const t = make(one, seedOf(rank));
      group.allReduce(t, { op: one.op });
      return plain(t);
    }
    case 'reduce': {
      const t = make(one, seedOf(rank));
      group.reduce(t, one.root % size, { op: one.op });
      return plain(t);
    }
    case 'broadcast': {
      const t = make(one, seedOf(rank));
      group.broadcast(t, one.root % size);
      return plain(t);
    }
    case 'allGather':
      return group.allGather(make(one, seedOf(rank))).flatMap(plain);
    case 'reduceScatter': {
      const parts = Array.from({ length: size }, (_, part) => make(one, seedOf(rank, part)));
      return plain(group.reduceScatter(parts, { op: one.op }));
    }
    case 'allToAll': {
      const parts = Array.from({ length: size }, (_, part) => make(one, seedOf(rank, part)));
      return group.allToAll(parts).flatMap(plain);
    }
    case 'sendRecv': {
      // Around the ring, raw and as a channel message.
      const next = (rank + 1) % size;
      const before = (rank + size - 1) % size;
      const t = make(one, seedOf(rank));
      const target = make(one, 1000);
      const works = group.batchSendRecv([
        { kind: 'send', tensor: t, peer: next, tag: index },
        { kind: 'recv', tensor: target, peer: before, tag: index },
      ]);
      for (const work of works) work.wait();
      group.channel(next).send(index, t);
      const any = group.channel(before).recv(index, { dtype: one.dtype, shape: one.shape });
      return [...plain(target), ...plain(any)];
    }
    default:
      throw new Error(`unknown case ${one.kind}`);
  }
}

/**
 * What a rank does by name, with the group and the data of the test.
 * @type {Record<string, (group: ProcessGroup, data: any) => unknown>}
 */
const scenarios = {
  /** A list of collectives. */
  cases: (group, /** @type {{ cases: Collective[] }} */ { cases }) =>
    cases.map((one, index) => scope(() => runCase(group, one, index))),

  /** A step of SyncBatchNorm on this rank's share of a batch; what it gave, what it learned, what it remembers. */
  syncBatchNorm(
    group,
    /** @type {{ momentum: number, affine: boolean, shares: number[] }} */ { momentum, affine, shares },
  ) {
    return scope(() => {
      const from = shares.slice(0, group.rank).reduce((a, b) => a + b, 0);
      const whole = tensorOp('aten::arange', [shares.reduce((a, b) => a + b, 0) * 12]);
      const x = whole
        .to('float64')
        .mul(0.37)
        .sin()
        .reshape([-1, 3, 4])
        .narrow(0, from, shares[group.rank] ?? 0);
      const input = x.clone().requiresGrad_();
      const net = new nn.Sequential(new nn.BatchNorm1d(3, { momentum, affine, dtype: 'float64' }));
      const model = /** @type {nn.Sequential} */ (nn.SyncBatchNorm.convertSyncBatchnorm(net));
      const output = model.forward(input);
      output.mul(x.cos()).sum().backward();
      return {
        name: model.at(0).toString(),
        output: plain(output),
        grad: gradOf(input),
        learned: model.parameters().map(gradOf),
        buffers: model.buffers().map(plain),
        alone: plain(model.eval().forward(input)),
      };
    });
  },

  objects(group) {
    const next = (group.rank + 1) % group.size;
    const before = (group.rank + group.size - 1) % group.size;
    group.sendObject({ from: group.rank }, next, 5);
    return {
      got: group.recvObject(before, { tag: 5 }),
      broadcast: group.broadcastObject(group.rank === 1 ? { by: 1, list: [1, 'two', null] } : undefined, 1),
      gathered: group.allGatherObject([group.rank, 'x']),
    };
  },

  /** Messages whose shape changes from one to the next, several tensors, a header, out of order; small and large. */
  shapes(group) {
    const peer = 1 - group.rank;
    const channel = group.channel(peer);
    if (group.rank === 0) {
      for (const n of [1, 5, 0, 100_000, 3]) channel.send(n, tensorOp('aten::arange', [n]).to('float32'));
      channel.sendMessage(7, { tensors: [tensor([[1, 2]]), null, tensor(true)], header: { name: 'x'.repeat(70_000) } });
      channel.send(8, tensorOp('aten::ones', [[3, 0, 2]]).to('bfloat16'));
      channel.send(
        9,
        tensor(
          [
            [1, 2],
            [3, 4],
          ],
          { dtype: 'float64' },
        ).transpose(0, 1),
      );
      return channel.recvObject();
    }
    const sums = [3, 100_000, 0, 5, 1].map((n) => {
      const t = channel.recv(n);
      return [t.shape, t.dtype.name, t.sum().item()];
    });
    const message = channel.recvMessage(7);
    const parts = message.tensors.map((t) => t?.toArray() ?? null);
    const empty = channel.recv(8);
    const turned = channel.recv(9).toArray();
    channel.sendObject('done');
    return {
      sums,
      parts,
      header: /** @type {{ name: string }} */ (message.header).name.length,
      empty: [empty.shape, empty.dtype.name],
      turned,
    };
  },

  /** One message of many tensors, small and large and none at all, and another message after it. */
  many(group) {
    const count = 1000;
    const channel = group.channel(1 - group.rank);
    if (group.rank === 0) {
      const small = /** @type {Tensor[]} */ (callOp('aten::unbind.int', [tensorOp('aten::arange', [count]), 0]));
      channel.sendMessage(1, { tensors: [ones([10_000]), ...small, null, ones([20_000])] });
      channel.send(2, tensor([5]));
      return channel.recvObject();
    }
    const { tensors } = channel.recvMessage(1);
    const numels = tensors.map((t) => t?.numel() ?? null);
    const small = tensors.slice(1, count + 1);
    const sum = tensorOp('aten::stack', [/** @type {Tensor[]} */ (small), 0])
      .sum()
      .item();
    const next = channel.recv(2).toArray();
    channel.sendObject('done');
    return { count: tensors.length, sum, ends: [numels[0], ...numels.slice(-2)], next };
  },

  /** Rank 0 sends all it has, then leaves as `how` says while rank 1 is still sending to it; rank 1 must get everything. */
  async leaves(group, { how, count, bytes }) {
    const peer = group.channel(1 - group.rank);
    const size = bytes / 8;
    if (group.rank === 0) {
      // Both ends have received something, as in a step.
      peer.recv(9);
      for (let i = 0; i < count; i++) peer.send(i, tensorOp('aten::full', [[size], i], { dtype: 'float64' }));
      if (how === 'abort') {
        group.abort('the next step failed');
        await new Promise((resolve) => setTimeout(resolve, 3000));
      } else if (how === 'exit') process.exit(3);
      else if (how === 'throw') throw new Error('the next step failed');
      return how;
    }
    for (let i = 0; i < count; i++) peer.send(9, ones([size], { dtype: 'float64' }));
    // Busy with something else for a while.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
    const got = [];
    let after = '';
    try {
      for (let i = 0; i < count; i++) got.push(peer.recv(i).sum().item() / size);
    } catch (error) {
      after = `lost after ${got.length}: ${told(error).message}`;
    }
    try {
      if (after === '') peer.recv(count, { timeoutMs: 60_000 });
    } catch (error) {
      after = String(told(error).code);
    }
    return { right: got.every((value, i) => value === i), count: got.length, after };
  },

  /** To itself, where gloo cannot. */
  self(group) {
    const own = group.channel(group.rank);
    own.send(1, tensor([group.rank, 2]));
    return own.recv(1).toArray();
  },

  subgroups(group) {
    const even = group.newGroup(Array.from({ length: group.size }, (_, i) => i).filter((i) => i % 2 === 0));
    const odd = group.newGroup(Array.from({ length: group.size }, (_, i) => i).filter((i) => i % 2 === 1));
    const mine = /** @type {ProcessGroup} */ (even ?? odd);
    const t = tensor([group.rank], { dtype: 'float32' });
    mine.allReduce(t);
    const result = { rank: mine.rank, size: mine.size, sum: t.item(), both: even !== null && odd !== null };
    mine.close();
    return result;
  },

  /** Collectives waited for later, and in another order than they were started. */
  async later(group) {
    const a = tensor([group.rank + 1], { dtype: 'float32' });
    const b = tensor([group.rank + 10], { dtype: 'float32' });
    const first = group.allReduce(a, { asyncOp: true });
    const second = group.allReduce(b, { op: 'max', asyncOp: true });
    const target = zeros([1]);
    const work = group.irecv(target, (group.rank + 1) % group.size, { tag: 3 });
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
    group.isend(a, (group.rank + group.size - 1) % group.size, { tag: 4 });
    // Asking is enough to learn of it.
    const asked = group.isend(a, (group.rank + group.size - 1) % group.size, { tag: 6 });
    group.recv(zeros([1]), (group.rank + 1) % group.size, { tag: 6 });
    for (let i = 0; i < 2000 && !asked.isCompleted(); i++) await new Promise((resolve) => setTimeout(resolve, 1));
    if (!asked.isCompleted()) throw new Error('isCompleted does not tell that a send is over');
    const sent = group.isend(tensor([group.rank], { dtype: 'float32' }), (group.rank + group.size - 1) % group.size, {
      tag: 3,
    });
    await second.done();
    await work.done();
    first.wait();
    sent.wait();
    clearInterval(timer);
    const rest = zeros([1]);
    group.recv(rest, (group.rank + 1) % group.size, { tag: 4 });
    return {
      a: a.item(),
      b: b.item(),
      got: target.item(),
      again: work.wait().item(),
      over: work.isCompleted(),
      loop: ticks > 0,
    };
  },

  /** Waits for what never comes. */
  timeouts(group) {
    const peer = (group.rank + 1) % group.size;
    const messages = [
      () => group.recv(zeros([2]), peer, { tag: 41, timeoutMs: 150 }),
      () => group.channel(peer).recv(42, { timeoutMs: 150 }),
      () => group.recvObject(peer, { tag: 43, timeoutMs: 150 }),
    ].map((call) => {
      const start = performance.now();
      try {
        call();
        return 'no error';
      } catch (error) {
        const ms = performance.now() - start;
        return { ...told(error), ms };
      }
    });
    group.barrier();
    return messages;
  },

  /** A collective that one rank never joins. Nobody leaves before all have given up: that would be another error. */
  missing(group) {
    const absent = group.size - 1;
    const others = Array.from({ length: absent }, (_, rank) => rank);
    if (group.rank === absent) {
      for (const rank of others) group.channel(rank).recvObject();
      for (const rank of others) group.channel(rank).sendObject('all have given up');
      // What is under way is lost with this process: it stays until the others have left.
      for (const rank of others) untilItLeaves(group.channel(rank));
      return 'absent';
    }
    // The others have all joined it before the first one's time begins: one that is only late would be missing too.
    const work = group.barrier({ asyncOp: true });
    for (const rank of others) if (rank !== group.rank) group.channel(rank).sendObject('joined');
    for (const rank of others) if (rank !== group.rank) group.channel(rank).recvObject();
    /** @type {unknown} */
    let result = 'no error';
    try {
      work.wait({ timeoutMs: 400 });
    } catch (error) {
      result = { code: told(error).code, message: told(error).message };
    }
    group.channel(absent).sendObject('given up');
    group.channel(absent).recvObject();
    return result;
  },

  /** One rank fails when the others are about to wait for it, or do so. */
  fail(group, { who, how }) {
    if (group.rank === who) {
      for (let rank = 0; rank < group.size; rank++) if (rank !== who) group.channel(rank).recvObject();
      sleep(100);
      if (how === 'exit') process.exit(3);
      if (how === 'kill') process.kill(process.pid, 'SIGKILL');
      throw new TypeError('the rank broke');
    }
    group.channel(who).sendObject('about to wait');
    const start = performance.now();
    try {
      if (how === 'collective') group.barrier({ timeoutMs: 100_000 });
      else group.channel(who).recv(1, { timeoutMs: 100_000 });
      return 'no error';
    } catch (error) {
      const { code, peer, message } = told(error);
      return { code, peer, message, ms: performance.now() - start };
    }
  },

  /** Blocks for good. */
  block(group, { what }) {
    const peer = (group.rank + 1) % group.size;
    parentPort?.postMessage('about to block');
    if (what === 'recv') group.recv(zeros([1]), peer, { tag: 9, timeoutMs: 1e9 });
    if (what === 'channel') group.channel(peer).recv(9, { timeoutMs: 1e9 });
    if (what === 'store') distributed.hashStore('nobody').get('never', { timeoutMs: 1e9 });
    if (what === 'barrier' && group.rank > 0) group.barrier({ timeoutMs: 1e9 });
    sleep(1e9);
  },

  /** What a rank draws between seeding over and over, while the others do the same. */
  random(_group, { seeds }) {
    return randomNumbers(seeds);
  },

  /** A step whose gradients are infinite on one rank only, then one that is well. */
  scaler(group) {
    const scaler = new GradScaler({ group, initScale: 8 });
    const weight = ones([2], { requiresGrad: true });
    const optimizer = new optim.SGD([weight], { lr: 1 });
    return [Number.POSITIVE_INFINITY, 1].map((value) => {
      optimizer.zeroGrad();
      weight.grad = ones([2]).mul(group.rank === 1 ? 8 * value : 8);
      const stepped = scaler.step(optimizer);
      scaler.update();
      return [stepped, scaler.getScale(), ...flat(weight.detach())];
    });
  },

  /** Hands tensors around for a while: how many are alive before and after? */
  leak(group, { rounds }) {
    const peer = 1 - group.rank;
    const channel = group.channel(peer);
    const t = zeros([1000]);
    const before = liveTensors();
    for (let i = 0; i < rounds; i++) {
      scope(() => {
        channel.send(i, t.add(1));
        channel.recv(i);
        group.allReduce(zeros([10]));
      });
    }
    return liveTensors() - before;
  },

  settings: () => distributed.getNumThreads(),
};

/** @param {import('../dist/index.js').distributed.Channel} channel */
function untilItLeaves(channel) {
  try {
    channel.recvObject();
  } catch (error) {
    if (told(error).code !== 'PEER_LOST') throw error;
  }
}

/** @param {number} ms */
function sleep(ms) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Math.min(ms, 2 ** 31 - 1));
}

/** Joins the group and runs `data.scenario`, or one after the other those of `data.scenarios`. @param {any} data */
export async function main(data) {
  const options = { timeoutMs: 60_000, ...data.init };
  if (data.file !== undefined) options.store = distributed.fileStore(data.file, Number(process.env['WORLD_SIZE']));
  const group = distributed.initProcessGroup(options);
  const run = async (/** @type {string} */ name) => {
    const scenario = scenarios[name];
    if (scenario === undefined) throw new Error(`no scenario '${name}'`);
    return scenario(group, data);
  };
  /** @type {Record<string, unknown>} */
  const results = {};
  for (const name of data.scenarios ?? []) {
    results[name] = await run(name);
    group.barrier();
  }
  const result = data.scenarios === undefined ? await run(data.scenario) : results;
  if (data.close !== false) distributed.destroyProcessGroup();
  return result;
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  main(JSON.parse(process.argv[2] ?? '{}')).then(
    (result) => console.log(`result ${JSON.stringify(result)}`),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}
