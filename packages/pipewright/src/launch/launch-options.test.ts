/** @file Options of `launch`: what is refused, and how. */
import { networkInterfaces } from 'node:os';
import { loopbackInterface } from '@pipewright/torch/environment';
import { describe, expect, test, vi } from 'vitest';
import { script } from '../../testing/launching/processes.ts';
import { planLaunch } from './launch-options.ts';
import { listenAddress } from './machines/address.ts';

test('what is missing is completed', () => {
  expect(planLaunch({ ranks: 2, script, threadsPerRank: 1 })).toMatchObject({
    ...{ ranks: 2, script: script.href, mode: 'processes', args: [], nnodes: 1, nodeRank: 0, masterAddr: '127.0.0.1' },
    ...{ masterPort: undefined, graceMs: 2000 },
  });
  const several = { ranks: 2, script, nnodes: 2, nodeRank: 1, masterAddr: 'a', secret: 'sixteen characters' };
  expect(planLaunch(several).masterPort).toBe(29_500);
});

test('bad options are refused with the way out', () => {
  const good = { ranks: 2, script };
  const calls: object[] = [
    { script },
    { ...good, ranks: 0 },
    { ...good, rank: 1 },
    { ranks: 2 },
    { ...good, script: 'there/is/none.ts' },
    { ...good, script: new URL('https://example.org/train.ts') },
    { ...good, mode: 'thread' },
    { ...good, nnodes: 2 },
    { ...good, nnodes: 2, nodeRank: 0 },
    { ...good, nnodes: 2, nodeRank: 2, masterAddr: 'a' },
    { ...good, nnodes: 2, nodeRank: 1, masterAddr: 'a', mode: 'threads' },
    { ...good, masterAddr: '' },
    { ...good, masterPort: 65535 },
    { ...good, timeoutMs: 0 },
    { ...good, graceMs: -1 },
    { ...good, threadsPerRank: 0.5 },
    { ...good, nnodes: 2, nodeRank: 1, masterAddr: 'a' },
    { ...good, nnodes: 2, nodeRank: 1, masterAddr: 'a', secret: 'short' },
    { ...good, secret: 'sixteen characters', secretFile: 'file' },
    { ...good, networkInterface: 3 },
    { ...good, networkInterface: 'nosuch0' },
    { ...good, nnodes: 2, nodeRank: 0, masterAddr: '127.0.0.1', networkInterface: 'nosuch0' },
  ];
  const messages = calls.map((options) => {
    try {
      planLaunch(options as never);
      return `no error from ${JSON.stringify(options)}`;
    } catch (error) {
      return (error as Error).message.replaceAll(process.cwd(), 'HERE').replace(/; it has [^;]+$/, '; it has THESE');
    }
  });
  expect(messages.join('\n')).toMatchInlineSnapshot(`
    "launch: ranks is undefined; give a whole number of at least 1
    launch: ranks is 0; give a whole number of at least 1
    launch: unknown option 'rank' (did you mean 'ranks'?); it takes ranks, script, mode, args, data, env, nnodes, nodeRank, masterAddr, masterPort, networkInterface, secret, secretFile, timeoutMs, graceMs, maxRestarts, onRestart, onRecovery, threadsPerRank, onLine
    launch: script is undefined; give a path or a URL
    launch: there is no file HERE/there/is/none.ts; check the path of the script
    launch: script is https://example.org/train.ts; give a file of this machine
    launch: mode is 'thread' (did you mean 'threads'?); give 'processes' or 'threads'
    launch: nodeRank is missing; with 2 machines, give 0 to 1
    launch: masterAddr is missing; give the address of machine 0, the same everywhere
    launch: nodeRank is 2; with nnodes 2 it is from 0 to 1
    launch: threads are of one machine; use processes where nnodes is more than 1
    launch: masterAddr is ''; give a name or an address
    launch: masterPort is 65535; give a whole number from 1 to 65534
    launch: timeoutMs is 0; give milliseconds, more than 0
    launch: graceMs is -1; give a whole number of at least 0
    launch: threadsPerRank is 0.5; give a whole number of at least 1
    launch: the secret is missing; give that of machine 0 by secret, secretFile or the variable PIPEWRIGHT_SECRET
    launch: the secret has 5 characters; give at least 16, at random, the same on all machines
    launch: give secret or secretFile, not both
    launch: networkInterface is 3; give the name of an interface, such as eth0
    launch: this machine has no network interface "nosuch0" with an address; it has THESE
    launch: this machine has no network interface "nosuch0" with an address; it has THESE"
  `);
});

describe('a network interface', () => {
  const loopback = loopbackInterface() ?? 'there is no loopback';

  test('of this machine is taken', async () => {
    expect(planLaunch({ ranks: 1, script, networkInterface: loopback }).networkInterface).toBe(loopback);
    const [address] = networkInterfaces()[loopback] ?? [];
    expect(await listenAddress('host.invalid', loopback)).toBe(address?.address);
    expect(await listenAddress('localhost', loopback)).toBe('127.0.0.1');
  });

  test.each(['127.0.0.1', 'localhost', 'host.invalid'])(
    'that is not there is refused with those that are, for %s',
    async (host) => {
      await expect(listenAddress(host, 'nosuch0')).rejects.toMatchObject({
        code: 'BAD_OPTION',
        message: `launch: this machine has no network interface "nosuch0" with an address; it has ${Object.keys(networkInterfaces()).join(', ')}`,
      });
    },
  );
});

describe('the secret of several machines', () => {
  const place = { ranks: 1, script, nnodes: 2, masterAddr: '127.0.0.1' };

  test('is the option, before the variable; a file leaves the variable aside', () => {
    vi.stubEnv('PIPEWRIGHT_SECRET', 'from the variable');
    try {
      expect(planLaunch({ ...place, nodeRank: 1 }).secret).toBe('from the variable');
      expect(planLaunch({ ...place, nodeRank: 1, secret: 'from the options' }).secret).toBe('from the options');
      const { secret, secretFile } = planLaunch({ ...place, nodeRank: 1, secretFile: 'a file' });
      expect([secret, secretFile]).toEqual([undefined, 'a file']);
      expect(planLaunch({ ranks: 1, script }).secret).toBe(undefined); // that of a launcher is none of one machine's
    } finally {
      vi.unstubAllEnvs();
    }
  });

  test('may be missing on machine 0 only, which makes one', () => {
    vi.stubEnv('PIPEWRIGHT_SECRET', '');
    try {
      expect(planLaunch({ ...place, nodeRank: 0 }).secret).toBe(undefined);
      expect(() => planLaunch({ ...place, nodeRank: 1 })).toThrow('the secret is missing');
    } finally {
      vi.unstubAllEnvs();
    }
  });
});

test('tensors, functions and symbols in data are refused by their place: they cannot be copied', () => {
  const like = { h: 7, toTypedArray: () => new Float32Array(), toArray: () => [] };
  expect(() => planLaunch({ ranks: 1, script, data: { batches: [1, like] } })).toThrow(
    'launch: data.batches[1] is a tensor, which cannot be sent between ranks and the launcher; give numbers',
  );
  class Config {
    readonly lr = 1;
    readonly next = (): number => 2;
    best(): number {
      return 3;
    }
  }
  const refused =
    (data: unknown): (() => unknown) =>
    () =>
      planLaunch({ ranks: 1, script, data });
  expect(refused({ all: [new Config()] })).toThrow('launch: data.all[0].next is a function, which cannot be sent');
  expect(refused(new Map([['x', Symbol('y')]]))).toThrow('launch: data.get("x") is a symbol');
  expect(refused(new Set([1, Config]))).toThrow('launch: data.values()[1] is a function');
  const around: Record<string, unknown> = { steps: 2, table: new Float32Array(4) };
  around['self'] = around;
  expect(planLaunch({ ranks: 1, script, data: around }).data).toBe(around);
});
