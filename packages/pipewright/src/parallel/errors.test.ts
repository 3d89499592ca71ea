/** @file An error inside a layer of one replica or of one shard: all ranks end, and it is named. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const program = fileURLToPath(new URL('../../testing/launching/survive.mjs', import.meta.url));

interface Outcome {
  readonly error: string;
  readonly failures: readonly (readonly [rank: number, code: string | null])[];
}

test('on threads and processes, with replicas and shards', async () => {
  const life = { steps: 9, breaks: { rank: 1, step: 2 } };
  const options = { maxRestarts: 0, graceMs: 60_000 };
  const jobs = [
    { life, options: { ...options, mode: 'threads' } },
    { life: { ...life, shards: 'parameters' }, options: { ...options, mode: 'threads' } },
    { life, options },
    { life: { ...life, shards: 'parameters' }, options },
  ];
  const { stdout } = await promisify(execFile)(process.execPath, [program, JSON.stringify(jobs)], {
    maxBuffer: 1e8,
    timeout: 500_000,
    killSignal: 'SIGKILL',
  });
  for (const { error, failures } of JSON.parse(stdout) as Outcome[]) {
    expect(error).toMatch(/^rank 1 failed.*the layer is broken/s);
    expect(failures.map(([rank]) => rank).toSorted()).toEqual([0, 1, 2, 3]);
    for (const [rank, code] of failures) if (rank !== 1) expect(code).toMatch(/PEER_LOST|ABORTED|STEP_REFUSED/);
  }
});
