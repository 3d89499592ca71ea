// @ts-check
/**
 * @file The whole product of schedules, ways of dividing and accumulated steps, on threads and on processes over gloo, against
 * plain training on the whole batch: `node tests/parallel/conformance.mjs [threads|processes|all]`. The suite runs a part of it. With
 * `--device cuda` on GPUs, processes with NCCL; where there are fewer GPUs than ranks, start MPS first. Ranks that take longer than
 * `--timeout` seconds are ended.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { distributed } from '@pipewright/torch';
import { caseOf, problemsOf, schedules, ways } from '../../packages/pipewright/testing/sharding.mjs';
import { rankEnvironment } from '../gpu/rank-environment.mjs';

/** @typedef {import('../../packages/pipewright/testing/sharding.ts').Case} Case */
/** @typedef {import('../../packages/pipewright/testing/sharding.ts').Result} Result */

const { positionals, values: flags } = parseArgs({
  allowPositionals: true,
  options: { device: { type: 'string', default: 'cpu' }, timeout: { type: 'string', default: '900' } },
});
const asked = positionals[0] ?? 'all';
/** @type {'cpu' | 'cuda'} */
const device = flags.device === 'cuda' ? 'cuda' : 'cpu';
const program = fileURLToPath(new URL('../../packages/pipewright/testing/ranks/parallel/replica.mjs', import.meta.url));

/** Programs that run. @type {Set<import('node:child_process').ChildProcess>} */
const running = new Set();

/** What a program of ranks prints. @param {number} threads @param {readonly Case[]} cases @param {NodeJS.ProcessEnv} env @returns {Promise<any>} */
function run(threads, cases, env = {}) {
  return new Promise((resolve, reject) => {
    const args = [program, String(threads), JSON.stringify(cases)];
    const child = spawn(process.execPath, args, {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'inherit'],
      timeout: Number(flags.timeout) * 1000,
      killSignal: 'SIGKILL',
    });
    running.add(child);
    let text = '';
    child.stdout.on('data', (data) => {
      text += data;
    });
    child.on('close', (code, signal) => {
      running.delete(child);
      const line = text.split('\n').find((each) => each.startsWith('result '));
      if (code === 0 && line !== undefined) resolve(JSON.parse(line.slice('result '.length)));
      else {
        // The other ranks would wait for this one, on a GPU that others need.
        for (const other of running) other.kill('SIGKILL');
        reject(new Error(`rank ${env['RANK'] ?? 'threads'} ended with ${code ?? signal}`));
      }
    });
  });
}

/** @param {'threads' | 'processes'} mode @param {number} ranks @param {readonly Case[]} cases @returns {Promise<Result[][]>} */
async function onRanks(mode, ranks, cases) {
  if (mode === 'threads') return run(ranks, cases);
  const port = await distributed.freePort();
  return Promise.all(
    Array.from({ length: ranks }, (_, rank) =>
      run(0, cases, { ...rankEnvironment(rank, ranks, port), PIPEWRIGHT_THREADS: '1' }),
    ),
  );
}

let failed = 0;
for (const mode of /** @type {const} */ (['threads', 'processes'])) {
  if (asked !== 'all' && asked !== mode) continue;
  for (const replicas of [1, 2]) {
    const chosen = ways.filter((way) => (way.replicas ?? 1) === replicas);
    const cases = schedules.flatMap((schedule) =>
      chosen.flatMap((way) => [1, 2].map((count) => ({ ...caseOf(schedule, way, count), device }))),
    );
    const ranks = Number(cases[0]?.pp) * Number(cases[0]?.dp);
    const started = performance.now();
    const [wanted] = await run(
      1,
      cases.map((one) => ({ ...one, plain: true })),
    );
    /** @type {Result[][]} */
    let results;
    try {
      results = await onRanks(mode, ranks, cases);
    } catch (error) {
      console.log(`${mode}, ${ranks} ranks: ${error instanceof Error ? error.message : String(error)}`);
      failed++;
      continue;
    }
    const problems = cases.flatMap((one, i) =>
      problemsOf(
        one,
        results.map((ofRank) => /** @type {Result} */ (ofRank[i])),
        wanted[i],
      ),
    );
    failed += problems.length;
    const seconds = ((performance.now() - started) / 1000).toFixed(0);
    console.log(`${mode}, ${ranks} ranks: ${cases.length} cases, ${problems.length} problems, ${seconds} s`);
    for (const problem of problems.slice(0, 20)) console.log(`  ${problem}`);
  }
}
process.exitCode = failed === 0 ? 0 : 1;
