/** @file Ranks as threads: results, failures, termination, cancellation, and nothing left behind. */
import { describe, expect, test } from 'vitest';
import { loadBuilt, runThreads, startThreads } from '../../../testing/launch.ts';
import { initialSeed, manualSeed, nn, ones, rand, scope } from '../../index.ts';
import type { NativeDistributed } from '../base/native.ts';

const built = await loadBuilt();
const { dist } = (await import(new URL('../../../dist/distributed/base/native.js', import.meta.url).href)) as {
  dist: NativeDistributed;
};

interface Ended {
  readonly code: string;
  readonly peer?: number;
  readonly message: string;
  readonly ms: number;
}

async function rejection(promise: Promise<unknown>): Promise<InstanceType<typeof built.RankError>> {
  try {
    await promise;
  } catch (error) {
    return error as InstanceType<typeof built.RankError>;
  }
  throw new Error('expected a rejection');
}

type Ranks = Awaited<ReturnType<typeof startThreads>>;

/** For ranks that shall come to an end of their own after another one's failure, however busy the machine is. */
const patient = { graceMs: 60_000 };

/** Starts threads that block for good, and returns when they are about to. */
async function blocked(count: number, what: string, options?: object): Promise<Ranks> {
  const ranks = await startThreads(count, { scenario: 'block', what }, options);
  await Promise.all(ranks.workers.map((worker) => new Promise((resolve) => worker.once('message', resolve))));
  await new Promise((resolve) => setTimeout(resolve, 50));
  return ranks;
}

describe('a rank that fails', () => {
  test('its error reaches the parent with rank and cause, and the others end', async () => {
    const error = await rejection(runThreads(3, { scenario: 'fail', who: 1, how: 'throw' }));
    expect(error).toBeInstanceOf(built.RankError);
    expect(error.rank).toBe(1);
    expect(error.message).toBe('rank 1: the rank broke');
    expect((error.cause as Error).stack).toContain('ranks.mjs');
  });

  test('the others are told who it was', async () => {
    const ranks = await startThreads(2, { scenario: 'fail', who: 0, how: 'throw' }, patient);
    const reports: unknown[] = [];
    ranks.workers[1]?.on('message', (message) => reports.push(message));
    await rejection(ranks.done);
    const value = (reports[0] as { value: Ended }).value;
    expect(value.code).toMatch(/^(ABORTED|PEER_LOST)$/);
    expect(value.message).toMatch(/rank 0 failed: the rank broke|rank 0 has left the group/);
    expect(value.ms).toBeLessThan(30_000);
  });

  test('a rank that exits in the middle', async () => {
    const error = await rejection(runThreads(2, { scenario: 'fail', who: 1, how: 'exit' }));
    expect(error.rank).toBe(1);
    expect(error.message).toBe('rank 1: the thread ended with exit code 3 before its work was done');
  });

  test('a module that does not exist', async () => {
    const error = await rejection(built.spawnThreads(2, new URL('../nowhere.mjs', import.meta.url)).done);
    expect(error.code).toBe('ERR_MODULE_NOT_FOUND');
  });
});

describe('terminate', () => {
  test.each(['recv', 'channel', 'barrier', 'store'])(
    'ends threads blocked in %s at once, and leaves nothing',
    async (what) => {
      const before = dist.liveGroups();
      const ranks = await blocked(3, what);
      const start = performance.now();
      await ranks.terminate();
      expect(performance.now() - start).toBeLessThan(30_000);
      const error = await rejection(ranks.done);
      expect(error.message).toMatch(/^rank \d: /);
      await expect.poll(() => dist.liveGroups()).toEqual(before);
    },
  );

  test('one terminated thread: its peers get an error that names it', async () => {
    const ranks = await blocked(2, 'channel', patient);
    const reports: unknown[] = [];
    ranks.workers[0]?.on('message', (message) => reports.push(message));
    await ranks.workers[1]?.terminate();
    const error = await rejection(ranks.done);
    expect([error.rank, ...error.others.map(({ rank }) => rank)].sort()).toEqual([0, 1]);
    const told = (reports[0] as { error: Ended }).error;
    expect(told.code).toMatch(/^(PEER_LOST|ABORTED)$/);
    expect(told.message).toMatch(/for rank 1 with tag 9: (rank 1 has left the group|rank 1 failed: the thread ended)/);
  });

  test('many times over leaks neither groups nor memory', async () => {
    const round = async (): Promise<void> => {
      const ranks = await blocked(2, 'channel');
      await ranks.terminate();
    };
    await round();
    const before = dist.liveGroups();
    globalThis.gc?.();
    const rss = process.memoryUsage().rss;
    for (let i = 0; i < 12; i++) await round();
    await expect.poll(() => dist.liveGroups()).toEqual(before);
    expect(process.memoryUsage().rss - rss).toBeLessThan(150e6);
  });
});

describe('from another thread', () => {
  test('cancelWaits ends the waits of the moment, of one rank or of all', async () => {
    const ranks = await blocked(2, 'channel');
    // The rank has said that it is about to wait; on a busy machine it may take its time, and only waits of the moment end.
    const cancel = (): number => built.cancelWaits(ranks.name, 'the user pressed stop', { rank: 1 });
    expect(cancel()).toBe(1);
    const again = setInterval(cancel, 25);
    const error = await rejection(ranks.done);
    clearInterval(again);
    expect(error.rank).toBe(1);
    expect(error.code).toBe('CANCELLED');
    expect(error.message).toMatch(
      /Channel.recv in group '.+': rank 1 waited \d+ ms for rank 0 with tag 9: the user pressed stop/,
    );
  });

  test('abortGroup ends all, also what has yet to start', async () => {
    const ranks = await startThreads(2, { scenario: 'block', what: 'barrier' });
    expect(built.abortGroup(ranks.name, 'enough')).toBeLessThanOrEqual(2);
    const error = await rejection(ranks.done);
    expect(error.code).toBe('ABORTED');
    expect(error.message).toContain('enough');
  });
});

test('ranks share the cores', async () => {
  expect(await runThreads(2, { scenario: 'settings' }, { threadsPerRank: 1 })).toEqual([1, 1]);
  expect(await runThreads(1, { scenario: 'settings' }, { threadsPerRank: 2 })).toEqual([2]);
});

test('each rank has a default generator of its own', async () => {
  const seeds = Array.from({ length: 200 }, (_, i) => i * 7);
  const expected = seeds.flatMap((seed) => {
    manualSeed(seed);
    return scope(() => [
      ...(rand([3]).toArray() as number[]),
      nn.functional
        .dropout(ones([8]))
        .sum()
        .item(),
      initialSeed(),
    ]);
  });
  const drawn = await runThreads(3, { scenario: 'random', seeds });
  for (const numbers of drawn) expect(numbers).toEqual(expected);
});

test('an infinite gradient on one rank makes all ranks of the scaler skip the step', async () => {
  for (const found of await runThreads(3, { scenario: 'scaler' }))
    expect(found).toEqual([
      [false, 4, 1, 1],
      [true, 4, -1, -1],
    ]);
});

test('bad arguments', () => {
  expect(() => built.spawnThreads(0, 'x')).toThrow('spawnThreads: 0 is not a number of ranks');
  expect(() => built.spawnThreads(1, 'x', null, { treadsPerRank: 1 } as object)).toThrow(
    "did you mean 'threadsPerRank'?",
  );
});
