/** @file Several machines: one of their ranks is lost, and a whole machine, whose launcher is started again. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { freePort } from '@pipewright/torch/environment';
import { afterAll, expect, test } from 'vitest';
import type { Recovery } from '../index.ts';

const folder = mkdtempSync(join(tmpdir(), 'machines-'));
const children: ChildProcess[] = [];
afterAll(() => {
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});
const program = fileURLToPath(new URL('../../testing/launching/surviving-machine.mjs', import.meta.url));

interface Outcome {
  readonly results: unknown[];
  readonly recoveries: readonly Recovery[];
  readonly restarts: readonly unknown[];
}

interface Machine {
  readonly child: ChildProcess;
  readonly outcome: Promise<Outcome>;
}

function start(options: object): Machine {
  const child = spawn(process.execPath, [program, JSON.stringify({ timeoutMs: 120_000, maxRestarts: 5, ...options })], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(child);
  const outcome = text(child.stdout as NonNullable<typeof child.stdout>).then((said) => JSON.parse(said) as Outcome);
  outcome.catch(() => undefined);
  return { child, outcome };
}

test('a rank of another machine is lost, then the whole machine', async () => {
  const life = { stages: 2, replicas: 2, steps: 8, folder, saveEvery: 2 };
  const calm = await start({ ranks: 4, data: { ...life, saveEvery: undefined } }).outcome;
  const ends = [{ rank: 3, step: 1, slot: 2, how: 'kill' }];
  const place = {
    ...{ ranks: 2, nnodes: 2, masterAddr: '127.0.0.1', masterPort: await freePort() },
    ...{ secret: 'a secret of the machines', data: { ...life, ends, pauseMs: 300 } },
  };
  const [first, second] = [0, 1].map((nodeRank) => start({ ...place, nodeRank })) as [Machine, Machine];
  while (!existsSync(join(folder, 'saved-2')) || !existsSync(join(folder, 'ended-0'))) {
    for (const { child } of [first, second]) expect([child.exitCode, child.signalCode]).toEqual([null, null]);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await new Promise((resolve) => setTimeout(resolve, 300));
  second.child.kill('SIGKILL');
  await once(second.child, 'exit');
  const back = start({ ...place, nodeRank: 1 });
  const [here, there] = await Promise.all([first.outcome, back.outcome]);
  expect([...here.results, ...there.results]).toEqual(calm.results);
  expect(here.restarts).toEqual([]);
  const lost = here.recoveries.flatMap((recovery) => recovery.lost.map(({ rank }) => rank));
  expect(lost).toEqual([3, 2, 3]);
  const counts = [0, 1, 2, 3].map((rank) => readFileSync(join(folder, `count-${rank}`), 'utf8'));
  expect(counts).toEqual(['0', '0', '2', '2']);
}, 300_000);
