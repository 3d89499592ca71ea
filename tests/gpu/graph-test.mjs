// @ts-check
/**
 * @file Exported models (`.pt2`), split over GPU ranks that are processes with NCCL, against plain training of the unsplit graph on
 * the CPU: `node tests/gpu/graph-test.mjs --ranks 2`. With more ranks than GPUs start MPS first.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { distributed } from '@pipewright/torch';
import { plain } from '../../packages/pipewright/testing/ranks/graph.mjs';
import { casesFor, problemsOf } from '../../packages/pipewright/testing/split-graphs.mjs';
import { rankEnvironment } from './rank-environment.mjs';

/** @typedef {import('../../packages/pipewright/testing/ranks/graph.mjs').Found} Found */

const { values: flags } = parseArgs({
  options: { ranks: { type: 'string', default: '2' }, device: { type: 'string', default: 'cuda' } },
});
const ranks = Number(flags.ranks);
const device = flags.device === 'cpu' ? 'cpu' : 'cuda';
const program = fileURLToPath(new URL('../../packages/pipewright/testing/ranks/graph.mjs', import.meta.url));
const cases = casesFor(ranks).map((one) => ({ ...one, device: /** @type {'cpu' | 'cuda'} */ (device) }));
const port = await distributed.freePort();
const results = await Promise.all(
  Array.from({ length: ranks }, (_, rank) => {
    const child = spawn(process.execPath, [program, '0', JSON.stringify(cases)], {
      env: { ...process.env, ...rankEnvironment(rank, ranks, port) },
      stdio: ['ignore', 'pipe', 'inherit'],
      timeout: 240_000,
      killSignal: 'SIGKILL',
    });
    let text = '';
    child.stdout.on('data', (/** @type {Buffer} */ data) => (text += data.toString()));
    return /** @type {Promise<Found[]>} */ (
      new Promise((resolve, reject) =>
        child.on('close', (code) => {
          const line = text.split('\n').find((each) => each.startsWith('result '));
          if (code === 0 && line !== undefined) resolve(JSON.parse(line.slice('result '.length)));
          else reject(new Error(`rank ${rank} ended with ${String(code)}`));
        }),
      )
    );
  }),
);
/** @type {Map<string, Found>} */
const oracles = new Map();
const problems = cases.flatMap((one, i) => {
  const oracle = oracles.get(one.model) ?? plain({ ...one, device: 'cpu' });
  oracles.set(one.model, oracle);
  const parts = results.map((ofRank) => /** @type {Found} */ (ofRank[i]));
  // Sums on a GPU have another order.
  return problemsOf(one, parts, oracle, device === 'cpu' ? 1e-12 : 1e-10);
});
for (const problem of problems.slice(0, 20)) console.log(`FAIL ${problem}`);
console.log(`${problems.length === 0 ? 'PASS' : 'FAIL'} ${cases.length} cases of exported models on ${ranks} ranks`);
process.exitCode = problems.length === 0 ? 0 : 1;
