/** @file Every verdict of the doctor about CUDA, and what it is drawn from. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { fakeMachine, fakeProgram, fakeTorch, pathWith } from '../../testing/fake-machine.ts';
import { noteUsedAddon } from './addon/used-addon.ts';
import { type CudaParts, cudaVerdict, findCuda } from './cuda-verdict.ts';
import { diagnose } from './doctor.ts';

const whole: CudaParts = {
  driver: 'NVIDIA H200, 580.1',
  gpus: 1,
  visible: undefined,
  libtorch: { cudaVersion: '13.2' },
  hasAddon: true,
};

describe('cudaVerdict', () => {
  test.each<[string, Partial<CudaParts>, string, boolean]>([
    ['no driver', { driver: null, gpus: 0 }, 'no NVIDIA driver found', false],
    ['a driver but no GPU', { gpus: 0 }, 'the NVIDIA driver is installed, but shows no GPU', false],
    ['GPUs hidden by an empty list', { visible: '' }, 'CUDA_VISIBLE_DEVICES= hides every GPU; unset it', false],
    ['GPUs hidden by -1', { visible: '-1,0' }, 'CUDA_VISIBLE_DEVICES=-1,0 hides every GPU; unset it', false],
    ['libtorch without CUDA, or none', { libtorch: null }, 'libtorch is without its CUDA libraries', true],
    ['no CUDA addon', { hasAddon: false }, 'the CUDA addon is not built', true],
  ])('%s', (_, missing, reason, setupHelps) => {
    const verdict = cudaVerdict({ ...whole, ...missing });
    expect(verdict).toEqual({ usable: false, reason: expect.stringContaining(reason), setupHelps });
  });

  test('usable', () => {
    const usable = { usable: true, reason: 'libtorch for CUDA 13.2', setupHelps: false };
    expect(cudaVerdict(whole)).toEqual(usable);
    expect(cudaVerdict({ ...whole, visible: '0,1' })).toEqual(usable);
    expect(cudaVerdict({ ...whole, libtorch: { cudaVersion: null } }).reason).toBe('libtorch for CUDA unknown');
  });

  test('the first reason is the one that has to go first', () => {
    const nothing: CudaParts = { driver: null, gpus: 0, visible: '', libtorch: null, hasAddon: false };
    expect(cudaVerdict(nothing).reason).toMatch(/no NVIDIA driver/);
    expect(cudaVerdict({ ...nothing, driver: 'x' }).reason).toMatch(/shows no GPU/);
    expect(cudaVerdict({ ...nothing, driver: 'x', gpus: 1 }).reason).toMatch(/hides every GPU/);
    expect(cudaVerdict({ ...nothing, driver: 'x', gpus: 1, visible: '0' }).reason).toMatch(/without its CUDA/);
  });
});

describe('findCuda', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'cuda-'));
  });
  afterEach(() => rmSync(root, { recursive: true }));

  const withSmi = (script: string): NodeJS.ProcessEnv => {
    fakeProgram(join(root, 'bin'), 'nvidia-smi', script);
    return { PATH: join(root, 'bin') };
  };
  const withKernel = (...gpus: string[]): string => {
    const proc = join(root, 'proc');
    mkdirSync(join(proc, 'gpus'), { recursive: true });
    writeFileSync(join(proc, 'version'), 'NVRM version: 580.1\nGCC version: 13\n');
    for (const gpu of gpus) mkdirSync(join(proc, 'gpus', gpu));
    return proc;
  };

  test('nothing of NVIDIA', () => {
    expect(findCuda({ PATH: '' }, join(root, 'proc'))).toEqual({ driver: null, gpus: 0 });
  });

  test('what nvidia-smi lists', () => {
    const env = withSmi("echo 'NVIDIA H200, 580.1'; echo 'NVIDIA H200, 580.1'");
    expect(findCuda(env, join(root, 'proc'))).toEqual({ driver: 'NVIDIA H200, 580.1\nNVIDIA H200, 580.1', gpus: 2 });
  });

  test('a driver without a GPU: nvidia-smi fails', () => {
    const env = withSmi("echo 'No devices were found'; exit 6");
    expect(findCuda(env, withKernel('0000:01:00.0'))).toEqual({ driver: 'NVRM version: 580.1', gpus: 0 });
  });

  test('a driver, and no nvidia-smi in PATH', () => {
    expect(findCuda({ PATH: '' }, withKernel())).toEqual({ driver: 'NVRM version: 580.1', gpus: 0 });
    expect(findCuda({ PATH: '' }, withKernel('0000:01:00.0'))).toEqual({ driver: 'NVRM version: 580.1', gpus: 1 });
  });
});

test('the doctor says it: with a driver, a CUDA build of libtorch, and then the addon', () => {
  const machine = fakeMachine();
  try {
    const bin = pathWith(machine.root, []);
    fakeProgram(bin, 'nvidia-smi', "echo 'NVIDIA H200, 580.1'");
    const dir = fakeTorch(join(machine.root, 'site'), '2.15.0');
    const env = { ...machine.env, PATH: bin, PIPEWRIGHT_LIBTORCH: dir };
    delete (env as NodeJS.ProcessEnv)['CUDA_VISIBLE_DEVICES'];
    const verdict = (more: NodeJS.ProcessEnv = {}): unknown =>
      diagnose({ places: machine.places, env: { ...env, ...more }, tryLoad: false }).findings.find(
        ({ part }) => part === 'CUDA',
      );
    expect(verdict()).toEqual({
      part: 'CUDA',
      health: 'absent',
      value: 'not usable: the CUDA addon is not built',
      fix: 'npx pipewright setup --cuda',
    });
    const addon = join(machine.places.addonDir, 'abc');
    mkdirSync(addon, { recursive: true });
    for (const file of ['pipewright.node', 'pipewright_cuda.node']) writeFileSync(join(addon, file), '');
    const key = { libtorchDir: dir, libtorchVersion: '2.15.0', libtorchBytes: 2_100_000, sources: '', compiler: 'c++' };
    writeFileSync(join(addon, 'stamp.json'), JSON.stringify({ key, libtorchSource: 'PIPEWRIGHT_LIBTORCH' }));
    noteUsedAddon(machine.places, addon);
    expect(verdict()).toEqual({ part: 'CUDA', health: 'ok', value: 'usable, libtorch for CUDA 13.2' });
    expect(verdict({ CUDA_VISIBLE_DEVICES: '-1' })).toMatchObject({
      health: 'absent',
      value: 'not usable: CUDA_VISIBLE_DEVICES=-1 hides every GPU; unset it',
    });
  } finally {
    machine.dispose();
  }
});
