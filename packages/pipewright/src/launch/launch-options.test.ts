/** @file Options of `launch`: what is refused, and how. */
import { expect, test } from 'vitest';
import { script } from '../../testing/launching/processes.ts';
import { planLaunch } from './launch-options.ts';

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
  ];
  const messages = calls.map((options) => {
    try {
      planLaunch(options as never);
      return `no error from ${JSON.stringify(options)}`;
    } catch (error) {
      return (error as Error).message.replaceAll(process.cwd(), 'HERE');
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
    launch: networkInterface is 3; give the name of an interface, such as eth0"
  `);
});
