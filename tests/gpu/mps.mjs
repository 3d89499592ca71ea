// @ts-check
/** @file NVIDIA's MPS, with which processes that share a GPU run side by side instead of taking turns. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const own = { CUDA_MPS_PIPE_DIRECTORY: '', CUDA_MPS_LOG_DIRECTORY: '' };
let control = '';
let started = false;

/** Starts it unless it runs; why that cannot be, or null. @returns {string | null} */
export function startMps() {
  if (started || existsSync(join(process.env['CUDA_MPS_PIPE_DIRECTORY'] ?? '/tmp/nvidia-mps', 'control'))) return null;
  control = spawnSync('which', ['nvidia-cuda-mps-control'], { encoding: 'utf8' }).stdout.trim();
  if (control === '') return 'there is no nvidia-cuda-mps-control';
  own.CUDA_MPS_PIPE_DIRECTORY = mkdtempSync(join(tmpdir(), 'mps-'));
  own.CUDA_MPS_LOG_DIRECTORY = mkdtempSync(join(tmpdir(), 'mps-'));
  started = spawnSync(control, ['-d'], { env: { ...process.env, ...own } }).status === 0;
  return started ? null : 'MPS does not start';
}

/** The environment of processes that use what was started here. @returns {NodeJS.ProcessEnv} */
export function mpsEnvironment() {
  return started ? { ...process.env, ...own } : process.env;
}

/** Ends what was started here. */
export function stopMps() {
  if (started) spawnSync(control, { input: 'quit\n', env: mpsEnvironment() });
  started = false;
}
