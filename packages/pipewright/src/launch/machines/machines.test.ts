/** @file Several machines: their launchers find each other, share failures and places, and notice who is gone. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { join } from 'node:path';
import { freePort } from '@pipewright/torch/environment';
import { describe, expect, test, vi } from 'vitest';
import { endWithTests, folder, numbersOf, patient, rejection, script } from '../../../testing/launching/processes.ts';
import { steadyMs } from '../../base/steady-clock.ts';
import { type LaunchError, type LaunchOptions, launch } from '../index.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import type { Connection } from './connection.ts';
import { openGuest } from './guest.ts';
import { respond } from './handshake.ts';
import { openHub } from './hub.ts';
import type { Link, LinkOptions } from './link.ts';

const failure = (rank: number, message: string): RankFailure => ({ rank, message, exitCode: 1, atMs: 1, ended: false });

async function options(nnodes: number, more: Partial<LinkOptions> = {}): Promise<(nodeRank: number) => LinkOptions> {
  const port = await freePort();
  const common = { nnodes, ranks: 2, host: '127.0.0.1', port, secret: 'a secret of many characters' };
  return (nodeRank) => ({ ...common, nodeRank, joinMs: 20_000, endMs: 500, ...more });
}

/** Launchers of `nnodes` machines, and what each heard. */
async function together(nnodes: number): Promise<{ links: Link[]; heard: RankFailure[][] }> {
  const of = await options(nnodes);
  const heard: RankFailure[][] = Array.from({ length: nnodes }, () => []);
  const links = await Promise.all(
    heard.map((list, node) => {
      const events = { failed: (one: RankFailure) => void list.push(one) };
      return node === 0 ? openHub(of(node), events) : openGuest(of(node), events);
    }),
  );
  return { links, heard };
}

/** A job of two machines with a rank each that waits: this launcher's, and one in a process of its own. */
async function twoMachines(
  name: string,
  more: Partial<LaunchOptions>,
): Promise<{ readonly ranks: ReturnType<typeof launch>; readonly other: ChildProcess; readonly file: string }> {
  const file = join(folder, name);
  const data = { scenario: 'waits', file };
  const secret = 'a secret of many characters';
  const here = { ranks: 1, nnodes: 2, nodeRank: 0, masterAddr: '127.0.0.1', masterPort: await freePort(), secret };
  const ranks = launch({ ...here, script, data, ...more });
  const launcher = new URL('../../../testing/launching/node-launcher.mjs', import.meta.url).pathname;
  const there = JSON.stringify({ ...here, nodeRank: 1, data });
  const other = endWithTests(spawn(process.execPath, [launcher, there], { stdio: 'ignore' }));
  return { ranks, other, file };
}

describe('launchers', () => {
  test('tell each other failures, and all get one report', async () => {
    const { links, heard } = await together(3);
    const [zero, one, two] = links as [Link, Link, Link];
    one.failed(failure(2, 'it broke'));
    const reports = await Promise.all([
      zero.over({ failures: [], places: [] }),
      one.over({ failures: [failure(2, 'it broke')], places: [] }),
      two.over({ failures: [failure(4, 'a consequence')], places: [] }),
    ]);
    for (const { failures } of reports)
      expect(failures.map(({ message }) => message).toSorted()).toEqual(['a consequence', 'it broke']);
    expect(heard.map((list) => list.map(({ rank }) => rank))).toEqual([[2], [], [2]]);
    for (const link of links) link.close();
  });

  test('do not mind when the clock of the machine is set, and know when a failure was', async () => {
    let jumps = 0;
    const clock = vi.spyOn(Date, 'now').mockImplementation(() => 3_600_000 * ++jumps);
    try {
      const { links, heard } = await together(3);
      const one = { ...failure(2, 'it broke'), atMs: steadyMs() - 50_000 };
      links[1]!.failed(one);
      await vi.waitFor(() => expect(heard[2]).toHaveLength(1), { timeout: 60_000 });
      expect(Math.abs(heard[2]![0]!.atMs - one.atMs)).toBeLessThan(30_000);
      for (const link of links) link.close();
    } finally {
      clock.mockRestore();
    }
  });

  test('notice when one is gone, whoever it is', async () => {
    const first = await together(2);
    first.links[1]!.close();
    const { failures } = await first.links[0]!.over({ failures: [], places: [] });
    expect(failures.map(({ rank, message }) => `${rank}: ${message}`)).toEqual([
      '2: machine 1 is gone with its ranks 2 to 3: the connection was closed',
    ]);
    first.links[0]!.close();
    const second = await together(2);
    second.links[0]!.close();
    const report = await second.links[1]!.over({ failures: [failure(3, 'mine')], places: [] });
    expect(report.failures.map(({ message }) => message)).toEqual([
      'mine',
      'machine 0 is gone with its ranks 0 to 1: the connection was closed',
    ]);
    second.links[1]!.close();
  });

  test('refuse machines that do not fit, and ignore strangers', async () => {
    const of = await options(2);
    const hub = openHub(of(0), { failed: () => undefined });
    const guest = (more: Partial<LinkOptions>): Promise<Error> =>
      rejection(openGuest({ ...of(1), ...more }, { failed: () => undefined }));
    const other = await guest({ nnodes: 3 });
    const stranger = connect(of(0).port, '127.0.0.1');
    await once(stranger, 'connect');
    stranger.write('GET / HTTP/1.1\n\n');
    const reasons = [
      other,
      await guest({ ranks: 4 }),
      await guest({ nodeRank: 0 }),
      await guest({ secret: 'another secret of many characters' }),
    ].map(({ message }) => message);
    expect(reasons).toMatchInlineSnapshot(`
      [
        "launch: machine 0 refused this machine: it has nnodes 3, machine 0 has 2",
        "launch: machine 0 refused this machine: it starts 4 ranks, machine 0 starts 2; all must start equally many",
        "launch: machine 0 refused this machine: its nodeRank is 0; those of the others are 1 to 1",
        "launch: machine 0 refused this machine: its secret is another one",
      ]
    `);
    const link = await openGuest(of(1), { failed: () => undefined });
    link.close();
    (await hub).close();
    stranger.destroy();
  });

  test('do not wait for ever', async () => {
    const of = await options(3, { joinMs: 5000 });
    const messages = await Promise.all([
      rejection<Error>(openHub(of(0), { failed: () => undefined })),
      rejection<Error>(openGuest(of(1), { failed: () => undefined })),
    ]);
    expect(messages[0]!.message.replaceAll(/:\d+/g, ':PORT')).toBe(
      'launch: machine 2 did not come to 127.0.0.1:PORT within 5000 ms; start a launcher there with nnodes 3, its own nodeRank and the secret of machine 0',
    );
    expect(messages[1]!.message).toMatch(/launch: machine 0 (did not begin at|is gone)/);
    const nobody = await options(2, { joinMs: 1000 });
    expect((await rejection<Error>(openGuest(nobody(1), { failed: () => undefined }))).message).toMatch(
      /machine 0 did not begin at 127\.0\.0\.1:\d+ within 1000 ms \(.*ECONNREFUSED.*\); is its launcher running/,
    );
  });
});

describe('a launcher that knows the secret but sends what no launcher does', () => {
  const failed = { ...failure(2, 'x'), atMs: 0 };
  test.each([
    ['an end without its fields', { kind: 'over' }],
    ['a failure of a rank of another machine', { kind: 'failed', failure: { ...failed, rank: 1 } }],
    ['a failure with exit code 0', { kind: 'failed', failure: { ...failed, exitCode: 0 } }],
    ['a failure without a text', { kind: 'failed', failure: { ...failed, message: 3 } }],
    ['a place in no state', { kind: 'over', failures: [], places: [{ rank: 2, state: 'odd', action: '' }] }],
    ['more failures than ranks', { kind: 'over', failures: [failed, failed, failed], places: [] }],
    ['nothing known', { kind: 'hello' }],
  ])('%s: it is lost, and nothing else happens', async (_, message) => {
    const of = await options(2);
    const hub = openHub(of(0), { failed: () => undefined });
    let connection: Connection | undefined;
    while (connection === undefined) {
      const socket = connect(of(0).port, '127.0.0.1').on('error', () => undefined);
      const entry = await respond(socket, of(1), { message: () => undefined, lost: () => undefined });
      if ('connection' in entry) ({ connection } = entry);
    }
    connection.send(message);
    const { failures } = await (await hub).over({ failures: [], places: [] });
    expect(failures.map((one) => one.message)).toEqual([
      'machine 1 is gone with its ranks 2 to 3: it sent something else than a launcher does',
    ]);
    (await hub).close();
  });

  test('commands to the terminal are taken out of its texts', async () => {
    const { links, heard } = await together(2);
    links[1]!.failed({ ...failure(2, '\u001b[2J\u001b]0;title\u0007red\u202e\r\n\tx'), stack: 'at \u009b31m x' });
    await vi.waitFor(() => expect(heard[0]).toHaveLength(1), { timeout: 60_000 });
    expect([heard[0]![0]!.message, heard[0]![0]!.stack]).toEqual(['red\n\tx', 'at 31m x']);
    for (const link of links) link.close();
  });
});

describe('two machines', () => {
  test('work together, and fail together with one cause', async () => {
    const masterPort = await freePort();
    const at = (nodeRank: number, data: object): Promise<unknown[]> =>
      launch({
        ranks: 1,
        nnodes: 2,
        nodeRank,
        masterAddr: '127.0.0.1',
        masterPort,
        secret: 'a secret of many characters',
        script,
        data,
        onLine: () => undefined,
        ...patient,
      }).done;
    const good = await Promise.all([at(0, { scenario: 'sum' }), at(1, { scenario: 'sum' })]);
    expect(good.flat()).toEqual([
      { sum: 3, env: ['0', '2', '0', '1'], args: [] },
      { sum: 3, env: ['1', '2', '0', '1'], args: [] },
    ]);
    const task = { scenario: 'throws', who: 1 };
    const errors = await Promise.all([rejection<LaunchError>(at(0, task)), rejection<LaunchError>(at(1, task))]);
    for (const error of errors) {
      expect(error.message).toBe('rank 1 failed: the numbers went wrong');
      expect(error.places.map(({ rank, state }) => `${rank} ${state}`)).toEqual([
        expect.stringMatching(/0 (working|waiting)/),
        '1 failed',
      ]);
      expect(error.report()).toMatch(/^Then rank 0 failed: .*connection/m);
    }
  });

  test('a machine that falls silent, its connections open, is found within 15 s and named', async () => {
    const { ranks, other, file } = await twoMachines('silent', { graceMs: 100 });
    const [, pid] = (await numbersOf(file, [0, 1])) as [number, number];
    // Neither its launcher nor its rank says anything more; no connection is closed.
    process.kill(pid, 'SIGSTOP');
    other.kill('SIGSTOP');
    const began = steadyMs();
    const error = await rejection<LaunchError>(ranks.done);
    expect(error.message).toBe('rank 1 failed: machine 1 is gone with its ranks 1 to 1: nothing was heard for 15 s');
    expect(steadyMs() - began).toBeGreaterThan(13_000);
    expect((error.failures[0]?.atMs ?? 0) - began).toBeLessThan(60_000);
  });

  test('a machine whose launcher is killed is missed by the other', async () => {
    const { ranks, other, file } = await twoMachines('lost', patient);
    await numbersOf(file, [0, 1]);
    other.kill('SIGKILL');
    const error = await rejection<LaunchError>(ranks.done);
    expect(error.message).toMatch(/^rank 1 failed: machine 1 is gone with its ranks 1 to 1: /);
    expect(error.failures[1]).toMatchObject({ rank: 0, code: 'PEER_LOST' });
  });
});
