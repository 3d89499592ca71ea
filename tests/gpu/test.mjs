// @ts-check
/**
 * @file All tests that need a GPU, on a machine that has one: `npm run test:gpu` (--only lanes,faults for some). What cannot be run
 * here is named with its reason. Several ranks share a GPU where there are fewer GPUs than ranks: for those tests MPS is started
 * unless it runs, and stopped again.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { cuda } from '@pipewright/torch';
import { mpsEnvironment, startMps, stopMps } from './mps.mjs';

/** @typedef {{ name: string, file: string, args?: string[], ranks?: number, nccl?: boolean, alone?: boolean }} Part */

/** @type {Part[]} */
const parts = [
  { name: 'cuda', file: 'cuda-test.mjs' },
  { name: 'pipeline', file: 'pipeline-test.mjs' },
  { name: 'recorder', file: 'recorder-test.mjs' },
  // Without MPS: there a process that is killed takes the others on its GPU with it.
  { name: 'faults', file: 'faults-test.mjs', args: ['--ranks', '2'], ranks: 2, nccl: true, alone: true },
  { name: 'lanes', file: 'lanes-test.mjs', ranks: 2, nccl: true },
  ...[2, 4].flatMap((ranks) =>
    ['nccl', 'threads', 'gloo'].map((kind) => ({
      name: `${kind}-${ranks}`,
      file: 'conformance-test.mjs',
      args: ['--ranks', String(ranks), '--kind', kind],
      ranks: kind === 'threads' ? 1 : ranks,
      nccl: kind === 'nccl',
    })),
  ),
  { name: 'graph', file: 'graph-test.mjs', ranks: 2, nccl: true },
  { name: 'parallel-threads', file: '../parallel/conformance.mjs', args: ['threads', '--device', 'cuda'] },
  {
    name: 'parallel',
    file: '../parallel/conformance.mjs',
    args: ['processes', '--device', 'cuda'],
    ranks: 8,
    nccl: true,
  },
  { name: 'long', file: 'long-test.mjs', ranks: 2, nccl: true },
  { name: 'long-captured', file: 'long-test.mjs', args: ['--capture'], ranks: 2, nccl: true },
];

const { values: flags } = parseArgs({ options: { only: { type: 'string' } } });
const wanted = flags.only?.split(',');
if (!cuda.isAvailable()) {
  console.log('SKIP everything: libtorch finds no GPU here; npx pipewright doctor says why');
  process.exit(0);
}
const gpus = cuda.deviceCount();
const hasNccl = cuda.ncclVersion() !== null;

console.log(`${gpus} x ${cuda.getDeviceProperties(0).name}, NCCL ${cuda.ncclVersion() ?? 'none'}`);
/** @type {string[]} */
const failed = [];
for (const { name, file, args = [], ranks = 1, nccl = false, alone = false } of parts) {
  if (wanted !== undefined && !wanted.includes(name)) continue;
  if (nccl && !hasNccl) {
    console.log(`SKIP ${name}: the CUDA addon was built without NCCL`);
    continue;
  }
  const problem = ranks > gpus && !alone ? startMps() : null;
  if (problem !== null) console.log(`     ${name}: ${ranks} ranks take turns on ${gpus} GPUs, slowly: ${problem}`);
  const env = alone ? process.env : mpsEnvironment();
  const script = fileURLToPath(new URL(file, import.meta.url));
  const { status } = spawnSync(process.execPath, [script, ...args], { stdio: 'inherit', env });
  console.log(`${status === 0 ? 'PASS' : 'FAIL'} ${name}`);
  if (status !== 0) failed.push(name);
}
stopMps();
console.log(failed.length === 0 ? 'all GPU tests passed' : `failed: ${failed.join(', ')}`);
process.exit(failed.length === 0 ? 0 : 1);
