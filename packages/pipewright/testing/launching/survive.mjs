// @ts-check
/** @file Runs jobs of `ranks/surviving.mjs` one after the other, in a process of their own, and prints as JSON how they went. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { launch } from '../../dist/index.js';

const script = new URL('../ranks/surviving.mjs', import.meta.url);
const jobs = /** @type {{ life: object, options: object }[]} */ (JSON.parse(process.argv[2] ?? '[]'));
const outcomes = [];
for (const { life, options } of jobs) {
  const folder = mkdtempSync(join(tmpdir(), 'surviving-'));
  const launched = launch({
    ...{ ranks: 4, script, threadsPerRank: 1, timeoutMs: 120_000, maxRestarts: 20, onLine: () => undefined },
    data: { stages: 2, replicas: 2, ...life, folder },
    ...options,
  });
  const outcome = await launched.done.then(
    (results) => ({ results }),
    (/** @type {import('../../dist/index.js').LaunchError} */ error) => ({
      error: error.message,
      failures: error.failures.map(({ rank, code }) => [rank, code ?? null]),
    }),
  );
  outcomes.push({
    ...outcome,
    recoveries: launched.recoveries(),
    restarts: launched.restarts().map(({ message }) => message),
  });
  rmSync(folder, { recursive: true, force: true });
}
console.log(JSON.stringify(outcomes));
