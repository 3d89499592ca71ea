/** @file Channels and collectives of a thread group, all ranks in this thread: memory, gradients, tags, limits. */
import { afterEach, describe, expect, test } from 'vitest';
import { native } from '../../addon/addon.ts';
import { fromTypedArray, liveTensors, scope, type Tensor, tensor, zeros } from '../../index.ts';
import { DistributedError } from '../base/errors.ts';
import { dist } from '../base/native.ts';
import type { Group } from './group.ts';
import { abortGroup, cancelWaits, threadGroup } from './make-group.ts';

let made = 0;
const open: Group[] = [];

/** A group whose ranks are all in this thread. */
function groupOf(size: number, options: { bound?: number; timeoutMs?: number } = {}): Group[] {
  const name = `here-${made++}`;
  const ranks = Array.from({ length: size }, (_, rank) =>
    threadGroup({ name, rank, size, timeoutMs: 200, ...options }),
  );
  open.push(...ranks);
  return ranks;
}

function pair(options: { bound?: number; timeoutMs?: number } = {}): [Group, Group] {
  return groupOf(2, options) as [Group, Group];
}

afterEach(async () => {
  for (const group of open.splice(0)) group.close();
  // A helper thread may hold a group for a moment after its promise is settled.
  await expect.poll(() => dist.liveGroups()).toEqual([0, 0]);
  expect(dist.liveWorks()).toBe(0);
});

const pointer = (t: Tensor): bigint => native.dataPointer(t.handle);

describe('hand-over', () => {
  test('is the same memory, without gradients', () => {
    const [a, b] = pair();
    const x = tensor([1, 2, 3], { dtype: 'float32', requiresGrad: true });
    const y = x.mul(2);
    a.channel(1).send(1, y);
    const got = b.channel(0).recv(1);
    expect(pointer(got)).toBe(pointer(y));
    expect([got.requiresGrad, got.isLeaf]).toEqual([false, true]);
    got.requiresGrad_(true);
    expect(y.requiresGrad && !y.isLeaf).toBe(true);
    expect(got.toArray()).toEqual([2, 4, 6]);
  });

  test('a change in place by the receiver is noticed by the backward of the sender', () => {
    const [a, b] = pair();
    const x = tensor([1, 2], { dtype: 'float32', requiresGrad: true });
    const y = x.exp();
    a.channel(1).send(1, y);
    b.channel(0).recv(1).mul_(2);
    expect(() => y.sum().backward()).toThrow(/modified by an inplace operation/);
  });

  test('memory of JavaScript is copied: it would die with its thread', () => {
    const [a, b] = pair();
    const mine = new Float32Array([1, 2]);
    const shared = fromTypedArray(mine, [2], { share: true });
    a.channel(1).send(1, shared);
    const got = b.channel(0).recv(1);
    mine[0] = 99;
    expect(got.toArray()).toEqual([1, 2]);
  });

  test('what was sent cannot be moved by its sender, who has another look at the same memory', () => {
    const [a, b] = pair();
    const mine = zeros([4]);
    a.channel(1).send(1, mine);
    expect(() => mine.resize_([4096])).toThrow(/cannot grow: its memory is shared/);
    const got = b.channel(0).recv(1);
    expect(() => got.resize_([4096])).toThrow(/cannot grow: its memory is shared/);
  });

  test('a tensor of an operation under way cannot be moved; afterwards it can', () => {
    const [a, b] = pair();
    const target = zeros([4]);
    const work = b.irecv(target, 0);
    expect(() => target.resize_([4096])).toThrow(/cannot grow: its memory is shared/);
    a.send(tensor([1, 2, 3, 4], { dtype: 'float32' }), 1);
    work.wait();
    expect(target.toArray()).toEqual([1, 2, 3, 4]);
    expect(target.resize_([4096]).shape).toEqual([4096]);
  });

  test('views, no elements, no dimensions, every dtype', () => {
    const [a, b] = pair();
    const view = tensor([
      [1, 2],
      [3, 4],
    ]).transpose(0, 1);
    a.channel(1).send(1, view);
    const got = b.channel(0).recv(1);
    expect([got.toArray(), got.stride()]).toEqual([
      [
        [1, 3],
        [2, 4],
      ],
      [1, 2],
    ]);
    for (const one of [
      zeros([0, 3]),
      tensor(7),
      tensor([true]),
      tensor([1.5], { dtype: 'bfloat16' }),
      tensor([2n ** 60n]),
    ]) {
      a.channel(1).send(2, one);
      const back = b.channel(0).recv(2, { dtype: one.dtype, shape: one.shape });
      expect(back.toArray()).toEqual(one.toArray());
    }
  });

  test('give: the sender keeps nothing', () => {
    const [a, b] = pair();
    scope(() => {
      const before = liveTensors();
      const x = zeros([4]);
      a.channel(1).send(1, x, { give: true });
      expect(liveTensors()).toBe(before);
      expect(() => x.shape).toThrow(/disposed/);
      expect(b.channel(0).recv(1).shape).toEqual([4]);
    });
  });

  test('a received tensor belongs to the scope', () => {
    const [a, b] = pair();
    const x = zeros([4]);
    const before = liveTensors();
    for (let i = 0; i < 100; i++) {
      scope(() => {
        a.channel(1).sendMessage(i, { tensors: [x, x], header: { i } });
        b.channel(0).recvMessage(i);
      });
    }
    expect(liveTensors()).toBe(before);
  });
});

describe('messages', () => {
  test('are found by tag, in order within a tag', () => {
    const [a, b] = pair();
    const to = a.channel(1);
    for (const [tag, value] of [
      [5, 1],
      [6, 2],
      [5, 3],
      [7, 4],
    ] as const)
      to.send(tag, tensor(value));
    const from = b.channel(0);
    expect([from.has(7), from.has(8), from.has()]).toEqual([true, false, true]);
    expect([7, 5, 6, 5].map((tag) => from.recv(tag).item())).toEqual([4, 1, 2, 3]);
    expect(from.has()).toBe(false);
  });

  test('carry headers, several tensors, holes; any tag may be asked for', () => {
    const [a, b] = pair();
    a.channel(1).sendMessage(9, { tensors: [tensor(1), null], header: { names: ['x'] } });
    a.channel(1).sendMessage(3, {});
    const first = b.channel(0).recvMessage();
    expect([first.tag, first.header, first.tensors.map((t) => t?.item() ?? null)]).toEqual([
      9,
      { names: ['x'] },
      [1, null],
    ]);
    expect(b.channel(0).recvMessage()).toEqual({ tag: 3, tensors: [], header: undefined });
  });

  test('objects and tensors do not meet', () => {
    const [a, b] = pair();
    a.channel(1).sendObject({ x: 1 }, 4);
    a.channel(1).send(4, tensor(2));
    expect(b.channel(0).recv(4).item()).toBe(2);
    expect(b.channel(0).recvObject(4)).toEqual({ x: 1 });
  });

  test('a stated dtype or shape is checked', () => {
    const [a, b] = pair();
    a.channel(1).send(1, zeros([2, 3]));
    expect(() => b.channel(0).recv(1, { dtype: 'int64', shape: [3, 2] })).toThrow("Channel.recv in group 'here-");
    a.channel(1).send(1, zeros([2, 3]));
    expect(() => b.channel(0).recv(1, { dtype: 'int64', shape: [3, 2] })).toThrow(
      'rank 1 from rank 0 with tag 1: the message has dtype float32, expected int64 and shape [2, 3], expected [3, 2]',
    );
    a.channel(1).sendMessage(2, { tensors: [] });
    expect(() => b.channel(0).recv(2)).toThrow('the message has 0 tensors, not one; use recvMessage');
  });

  test('asynchronously, with a signal', async () => {
    const [a, b] = pair({ timeoutMs: 60_000 });
    const later = b.channel(0).recvAsync(1);
    setTimeout(() => a.channel(1).send(1, tensor(5)), 20);
    expect((await later).item()).toBe(5);
    const aborter = new AbortController();
    const never = b.channel(0).recvMessageAsync(2, { signal: aborter.signal });
    setTimeout(() => aborter.abort(new Error('changed my mind')), 20);
    await expect(never).rejects.toThrow('changed my mind');
    await expect(b.channel(0).recvAsync(2, { timeoutMs: 30 })).rejects.toThrow(
      /waited \d+ ms for rank 0 with tag 2: no message came/,
    );
  });
});

describe('limits', () => {
  test('a time-out says who, what, how long, and what is there instead', () => {
    const [a, b] = pair();
    a.channel(1).send(3, tensor(1));
    a.channel(1).send(4, tensor(1));
    let error: unknown;
    try {
      b.channel(0).recv(7, { timeoutMs: 50 });
    } catch (caught) {
      error = caught;
    }
    expect(error).toBeInstanceOf(DistributedError);
    const { code, group, rank, peer, tag, operation, waitedMs, message } = error as DistributedError;
    expect({ code, group, rank, peer, tag, operation }).toEqual({
      code: 'TIMED_OUT',
      group: b.name,
      rank: 1,
      peer: 0,
      tag: 7,
      operation: 'Channel.recv',
    });
    expect(waitedMs).toBeGreaterThanOrEqual(50);
    expect(message.replace(/\d+ ms/, 'N ms').replace(b.name, 'G')).toMatchInlineSnapshot(
      `"Channel.recv in group 'G': rank 1 waited N ms for rank 0 with tag 7: no message with tag 7 came, but 2 with other tags (3, 4); see what that rank is doing, or give a longer timeoutMs"`,
    );
  });

  test('whoever waits looks around meanwhile, ends the wait by an error, and hears at the end how long it was', () => {
    const [a, b] = pair();
    let looks = 0;
    const whileWaiting = (): void => {
      if (looks++ > 0) a.channel(1).sendMessage(7, { header: 'late' });
    };
    expect(b.channel(0).recvMessage(7, { timeoutMs: 60_000, whileWaiting }).header).toBe('late');
    expect(looks).toBe(2);
    const giveUp = (): void => {
      throw new RangeError('enough');
    };
    expect(() => b.channel(0).recvMessage(7, { whileWaiting: giveUp })).toThrow(new RangeError('enough'));
    expect(() => b.channel(0).recvMessage(7, { timeoutMs: 150, whileWaiting: () => void looks++ })).toThrow(
      /rank 1 waited (1[5-9]\d|[2-9]\d\d|\d{4,}) ms for rank 0 with tag 7: no message came/,
    );
    expect(looks).toBe(4);
  });

  test('a bound makes sends wait for room', () => {
    const [a, b] = pair({ bound: 2, timeoutMs: 60 });
    a.channel(1).send(1, tensor(1));
    a.channel(1).send(2, tensor(2));
    expect(() => a.channel(1).send(3, tensor(3))).toThrow(
      /Channel.send .* waited \d+ ms to rank 1 with tag 3: the receiver has 2 messages it has not taken/,
    );
    b.channel(0).recv(1);
    a.channel(1).send(3, tensor(3));
    expect(b.channel(0).recv(3).item()).toBe(3);
  });

  test('a peer that has left', () => {
    const [a, b] = pair({ timeoutMs: 60_000 });
    a.channel(1).send(1, tensor(1));
    a.close();
    expect(b.channel(0).recv(1).item()).toBe(1);
    expect(() => b.channel(0).recv(1)).toThrow(
      /rank 1 for rank 0 with tag 1: rank 0 has left the group; the first error of that rank is the cause/,
    );
    expect(() => b.channel(0).send(1, zeros([1]))).toThrow(
      /Channel.send in group '.*': rank 1 to rank 0 with tag 1: rank 0 has left the group/,
    );
    expect(() => b.barrier()).toThrow(/barrier in group '.*': rank 1: rank 0 has left the group and did not take part/);
  });

  test('abort ends all waits for good, cancelWaits those of the moment', async () => {
    const [, b] = pair({ timeoutMs: 60_000 });
    const waiting = b.channel(0).recvAsync(1);
    // Whether the helper thread waits already, nobody can tell.
    const cancelling = setInterval(() => cancelWaits(b.name, 'stop that', { rank: 1 }), 10);
    await expect(waiting).rejects.toThrow(/waited \d+ ms for rank 0 with tag 1: stop that/);
    clearInterval(cancelling);
    abortGroup(b.name, 'rank 0 is on fire');
    expect(() => b.channel(0).recv(1)).toThrow('rank 0 is on fire');
    expect(() => b.channel(0).send(1, zeros([1]))).toThrow('rank 0 is on fire');
    expect(() => b.allReduce(zeros([1]))).toThrow('rank 0 is on fire');
  });

  test('a closed group, a rank twice, sizes that differ', () => {
    const [a, b] = pair();
    expect(() => threadGroup({ name: a.name, rank: 0, size: 2 })).toThrow(
      'rank 0 has joined this thread group already',
    );
    expect(() => threadGroup({ name: a.name, rank: 0, size: 3 })).toThrow('this thread group has 2 ranks, not 3');
    b.close();
    expect(() => b.channel(0).recv(1)).toThrow(`the group '${b.name}' is closed`);
    expect(() => threadGroup({ name: a.name, rank: 1, size: 2 })).toThrow(
      'rank 1 has left this thread group; use another name',
    );
  });

  test('bad arguments say what to do', () => {
    const [a] = pair();
    expect(() => a.channel(2)).toThrow("channel: 2 is not a rank of group '");
    expect(() => a.channel(1).send(-1, zeros([1]))).toThrow(
      'Channel.send: the tag is -1; give a whole number, at least 0',
    );
    expect(() => a.channel(1).send(1.5, zeros([1]))).toThrow('the tag is 1.5');
    expect(() => a.channel(1).recv(1, { dtyp: 'x' } as object)).toThrow("did you mean 'dtype'?");
    expect(() => a.channel(1).send(1, {} as never)).toThrow(
      'Channel.send: expected a tensor of this thread, got object',
    );
    expect(() => a.channel(1).sendMessage(1, { tensors: [undefined as never] })).toThrow(
      'expected a tensor of this thread, got nothing',
    );
    expect(() => a.send('x' as never, 1)).toThrow('send: expected a tensor, got string');
    expect(() => a.send(zeros([1]), 1, { tag: 2 ** 31 })).toThrow('give a whole number from 0 to');
    expect(() => a.allReduce(zeros([1], { dtype: 'int64' }), { op: 'avg' })).toThrow(
      'allReduce: int64 has no average; use sum, or convert to float32',
    );
    expect(() => a.allReduce(zeros([1]), { op: 'mean' as never })).toThrow(
      'allReduce: op is mean; give sum, avg, product, min, max',
    );
    expect(() => a.allGather(zeros([1]).to('meta'))).toThrow('a meta tensor has a shape but no values');
    expect(() => a.reduceScatter([zeros([1])])).toThrow('expected 2 tensors, one per rank; got 1 tensors');
    expect(() => a.newGroup([0, 0])).toThrow('newGroup: ranks are [0, 0]');
    expect(() => threadGroup({ name: 'x', rank: 2, size: 2 })).toThrow('rank is 2; in a group of 2 it is from 0 to 1');
  });
});

describe('collectives', () => {
  test('nobody depends on when another rank waits', () => {
    const groups = groupOf(3);
    const values = groups.map((_, rank) => tensor([rank + 1, 10], { dtype: 'float32' }));
    const works = groups.map((group, rank) => group.allReduce(values[rank] as Tensor, { asyncOp: true }));
    expect(works.map((work) => work.isCompleted())).toEqual([true, true, true]);
    works[2]?.wait();
    expect(values[2]?.toArray()).toEqual([6, 30]);
    works[0]?.wait();
    works[1]?.wait();
    expect(values.map((value) => value.toArray())).toEqual([
      [6, 30],
      [6, 30],
      [6, 30],
    ]);
  });

  test('add in the order of the ranks, whoever does it', () => {
    const numbers = [1e8, 1, -1e8, 1];
    const expected = numbers.map(Math.fround).reduce((a, b) => Math.fround(a + b));
    for (const first of [0, 1, 2, 3]) {
      const groups = groupOf(4);
      const values = groups.map((_, rank) => tensor([numbers[rank] as number], { dtype: 'float32' }));
      const works = groups.map((group, rank) => group.allReduce(values[rank] as Tensor, { asyncOp: true }));
      works[first]?.wait();
      for (const work of works) work.wait();
      expect(values.map((value) => value.item())).toEqual([expected, expected, expected, expected]);
    }
  });

  test('ranks that call different things are told at once', () => {
    const [a, b] = pair({ timeoutMs: 60_000 });
    const work = a.allReduce(zeros([2]), { asyncOp: true });
    const told =
      /rank 0 called allReduce with sum, rank 1 called broadcast from rank 0: all ranks must call the same collectives in the same order/;
    expect(() => b.broadcast(zeros([2]), 0)).toThrow(told);
    expect(() => work.wait()).toThrow(told);
    const other = a.allReduce(zeros([2]), { asyncOp: true });
    expect(() => b.allReduce(zeros([3]))).toThrow(
      /one rank has float32\[2\], another float32\[3\]; both sides must agree on dtype and shape/,
    );
    expect(() => other.wait()).toThrow('one rank has');
  });

  test('a receive that does not fit is an error', () => {
    const [a, b] = pair();
    a.send(zeros([2]), 1);
    expect(() => b.recv(zeros([3]), 0)).toThrow('the message is float32[2], the tensor to fill is float32[3]');
  });

  test('the sender may change its tensor after send', () => {
    const [a, b] = pair();
    const x = tensor([1, 2]);
    a.send(x, 1);
    x.zero_();
    expect(b.recv(tensor([0, 0]), 0).toArray()).toEqual([1, 2]);
  });

  test('receives are filled in the order they were posted', async () => {
    const [a, b] = pair({ timeoutMs: 60_000 });
    const works = [0, 1, 2].map(() => b.irecv(tensor(0), 0, { tag: 1 }));
    for (const value of [10, 20, 30]) a.send(tensor(value), 1, { tag: 1 });
    expect(works[2]?.wait().item()).toBe(30);
    expect(works[0]?.wait().item()).toBe(10);
    expect((await works[1]?.done())?.item()).toBe(20);
    const more = [0, 1, 2].map(() => b.irecv(tensor(0), 0, { tag: 1 }).done());
    for (const value of [1, 2, 3]) a.send(tensor(value), 1, { tag: 1 });
    expect((await Promise.all(more)).map((t) => t.item())).toEqual([1, 2, 3]);
  });

  test('a collective changes the version of its tensor', () => {
    const [a, b] = pair();
    const x = tensor([1, 2], { dtype: 'float32', requiresGrad: true });
    const y = x.exp();
    const saved = y.square();
    const work = a.allReduce(y, { asyncOp: true });
    b.allReduce(zeros([2]));
    work.wait();
    expect(() => saved.sum().backward()).toThrow(/modified by an inplace operation/);
  });
});
