/** @file Ranks are lost in every way, and the result is that of an undisturbed run, bit by bit. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, test } from 'vitest';
import { formatRecovery, type Recovery, trainLoop } from '../index.ts';

const program = fileURLToPath(new URL('../../testing/launching/survive.mjs', import.meta.url));
const MINUTES = 8 * 60_000;

interface Outcome {
  readonly results?: unknown;
  readonly error?: string;
  readonly recoveries: readonly Recovery[];
  readonly restarts: readonly string[];
}

interface Job {
  readonly life: object;
  readonly options: object;
}

/** Several jobs, one after the other. */
async function run(jobs: readonly Job[]): Promise<Outcome[]> {
  const { stdout } = await promisify(execFile)(process.execPath, [program, JSON.stringify(jobs)], {
    maxBuffer: 1e8,
    timeout: MINUTES - 60_000,
    killSignal: 'SIGKILL',
  });
  return JSON.parse(stdout) as Outcome[];
}

describe('threads', () => {
  const everywhere = [
    { rank: 0, step: 0, slot: 0, how: 'exit' },
    { rank: 3, step: 1, slot: 5, how: 'exit' },
    { rank: 1, step: 2, slot: -1, how: 'throw' },
    { rank: 2, step: 4, slot: -2, how: 'leave' },
    { rank: 2, step: 5, slot: -3, how: 'exit' }, // while the ranks connect
    { rank: 0, step: 6, slot: 3, how: 'exit' },
    { rank: 2, step: 8, slot: -2, how: 'throw' },
  ];
  const together = [1, 2].map((rank) => ({ rank, step: 3, slot: 2, how: 'exit' }));
  const often = [0, 1, 2].map((step) => ({ rank: 1, step, slot: 2, how: 'throw' }));
  const lives = {
    calm: { steps: 9 },
    everywhere: { steps: 9, ends: everywhere },
    seldom: { steps: 9, copyEvery: 3, ends: [{ rank: 1, step: 5, slot: 2, how: 'exit' }] },
    together: { steps: 9, ends: together },
    twoCopies: { steps: 9, ends: together, copies: 2 },
    often: { steps: 9, ends: often },
    ends: { steps: 9, absent: { rank: 1, how: 'ends' } },
    sleeps: { steps: 9, absent: { rank: 2, how: 'sleeps' } },
  };
  let outcomes: Readonly<Record<keyof typeof lives, Outcome>>;
  beforeAll(async () => {
    const names = Object.keys(lives) as (keyof typeof lives)[];
    const jobs = names.map((name) => {
      const limits = {
        often: { maxRestarts: 2 },
        ends: { maxRestarts: 1 },
        sleeps: { maxRestarts: 1, timeoutMs: 3000 },
      };
      const options = { mode: 'threads', ...limits[name as keyof typeof limits] };
      return { life: lives[name], options };
    });
    const all = await run(jobs);
    outcomes = Object.fromEntries(names.map((name, i) => [name, all[i]])) as typeof outcomes;
  }, MINUTES);

  test('ranks end at actions, in the optimizer, between steps, while the ranks connect, in the last step', () => {
    const { results, recoveries, restarts } = outcomes.everywhere;
    expect(outcomes.calm.results).toHaveLength(4);
    expect(results).toEqual(outcomes.calm.results);
    expect(restarts).toEqual([]);
    const lost = recoveries.flatMap((recovery) => recovery.lost);
    expect(lost.map(({ rank }) => rank).toSorted()).toEqual(everywhere.map(({ rank }) => rank).toSorted());
    const second = recoveries.find((recovery) => recovery.lost.some(({ rank }) => rank === 3))!;
    expect(second.lost.find(({ rank }) => rank === 3)).toEqual({
      ...{ rank: 3, slot: 5, action: '1F1', message: 'it exited with code 3' },
      from: 'its replica, rank 2, and the copy that rank 0 kept',
    });
    expect([second.step, second.resumedAt]).toEqual([1, 1]);
  });

  test('copies after every third step: more steps are repeated', () => {
    const { results, recoveries } = outcomes.seldom;
    expect(results).toEqual(outcomes.calm.results);
    expect(recoveries.map(({ step, resumedAt }) => [step, resumedAt])).toEqual([[5, 3]]);
  });

  test('a rank and the one that keeps its copy: all begin again, unless there are two copies', () => {
    expect(outcomes.together.results).toEqual(outcomes.calm.results);
    for (const message of outcomes.together.restarts)
      expect(message).toContain('no copy of the state of rank 1 is left');
    expect(outcomes.twoCopies.results).toEqual(outcomes.calm.results);
    expect(outcomes.twoCopies.restarts).toEqual([]);
  });

  test('when no more ranks may be started again, the cause is told', () => {
    expect(outcomes.often.error).toContain('the rank fails here');
    expect(outcomes.often.recoveries.length).toBeGreaterThan(0);
  });

  test('nobody waits for ever for a rank that does not come to its loop', () => {
    expect(outcomes.ends.error).toBe(
      'rank 1 failed: it ended with exit code 0, too early: the other ranks have steps to do',
    );
    expect(outcomes.sleeps.error).toMatch(
      /^rank 2 failed.*: it did not come to trainLoop within 3000 ms, and the other ranks wait for it there$/,
    );
  });
});

test(
  'processes: one is killed, another one stopped at the same time, one is killed in a save',
  async () => {
    const ends = [
      { rank: 0, step: 1, slot: 3, how: 'kill' },
      { rank: 2, step: 2, slot: 0, how: 'kill' },
      { rank: 0, step: 2, slot: 0, how: 'stop' },
      { rank: 3, step: 3, slot: -4, how: 'kill' },
    ];
    const [calm, wild] = (await run([
      { life: { steps: 4 }, options: {} },
      { life: { steps: 4, ends, saveEvery: 2 }, options: {} },
    ])) as [Outcome, Outcome];
    expect(calm.results).toHaveLength(4);
    expect(wild.results).toEqual(calm.results);
    expect(wild.restarts).toEqual([]);
    expect(wild.recoveries.flatMap(({ lost }) => lost.map(({ rank }) => rank)).toSorted()).toEqual([0, 0, 2, 3]);
    expect(wild.recoveries[0]?.lost[0]).toMatchObject({ rank: 0, slot: 3 });
  },
  MINUTES,
);

test.each(['parameters', 'optimizer'])(
  'shards of %s, checkpoints and a DataLoader: ranks are lost in a step, before a save and in one',
  async (shards) => {
    const ends = [
      { rank: 3, step: 1, slot: 3, how: 'exit' },
      { rank: 2, step: 3, slot: -5, how: 'throw' },
      { rank: 1, step: 5, slot: -4, how: 'exit' },
    ];
    const life = { steps: 8, shards, saveEvery: 2 };
    const kills = ends.map((end) => ({ ...end, how: 'kill' }));
    const [calm, threads, processes] = (await run([
      { life, options: { mode: 'threads' } },
      { life: { ...life, ends }, options: { mode: 'threads' } },
      ...(shards === 'parameters' ? [{ life: { ...life, ends: kills }, options: {} }] : []),
    ])) as [Outcome, Outcome, Outcome | undefined];
    expect(calm.results).toHaveLength(4);
    for (const wild of [threads, ...(processes === undefined ? [] : [processes])]) {
      expect(wild.error).toBeUndefined();
      expect(wild.results).toEqual(calm.results);
      expect(wild.restarts).toEqual([]);
      expect(wild.recoveries.flatMap(({ lost }) => lost.map(({ rank }) => rank))).toEqual([3, 2, 1]);
    }
  },
  MINUTES,
);

test('what is wrong with the options is told', async () => {
  const options = { steps: 1, state: {}, connect: () => 0, step: () => undefined };
  await expect(trainLoop({ ...options, step: 3 as never })).rejects.toThrow('trainLoop: step is 3; give a function');
  await expect(trainLoop({ ...options, stepss: 3 } as never)).rejects.toThrow("unknown option 'stepss'");
  await expect(trainLoop({ ...options, state: { seed: 3 as never } })).rejects.toThrow(
    'trainLoop: state.seed is 3; give modules, optimizers, generators',
  );
});

test('a recovery in one line', () => {
  const lost = { rank: 2, message: 'it exited with code 3', slot: 4, action: '1F2', from: 'the copy that rank 3 kept' };
  const times = {
    atMs: 0,
    noticedAfterMs: 1,
    stoppedAfterMs: 12,
    readyAfterMs: 900,
    repairedAfterMs: 1234,
    repeatedMs: 50,
  };
  const recovery = { count: 1, of: 3, lost: [lost], step: 7, resumedAt: 7, generation: 1, ...times };
  expect(formatRecovery(recovery)).toMatchInlineSnapshot(
    `"recovery 1 of 3: rank 2 was lost at slot 4 (1F2): it exited with code 3; its state came from the copy that rank 3 kept; noticed after 1 ms, the others stopped after 12 ms, repaired after 1,234 ms; step 7 repeated in 50 ms"`,
  );
  expect(formatRecovery({ ...recovery, resumedAt: 8 })).toMatch(/no step had to be repeated$/);
  expect(formatRecovery({ ...recovery, lost: [], resumedAt: 5 })).toMatchInlineSnapshot(
    `"recovery 1 of 3: the ranks lost their connections; noticed after 1 ms, the others stopped after 12 ms, repaired after 1,234 ms; steps 5 to 7 repeated in 50 ms"`,
  );
});
