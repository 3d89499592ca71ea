/** @file Which wheels `--cuda` brings, from what torch and the toolkit require; and that all of it is unpacked beside the rest. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  type FakeMachine,
  fakeMachine,
  HeardProgress,
  publishWheels,
  torchFiles,
  writeWheel,
} from '../../../testing/fake-machine.ts';
import { cudaRequirements, extraRequirements, nvidiaWheel } from './cuda-wheels.ts';
import { checkLibtorch, fetchLibtorch } from './fetch-libtorch.ts';
import { findLibtorch } from './find-libtorch.ts';
import { WHEEL_HASHES } from './wheel-hashes.ts';

const TORCH = `Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cublas,cudart]==13.2.2; platform_system == "Linux"
Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.15"
Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"
Requires-Dist: triton~=3.9.0; platform_system == "Linux" and python_version < "3.16"
Requires-Dist: optree>=0.13.0; extra == "optree"
`;
const linux =
  "(sys_platform == 'linux' and platform_machine == 'x86_64' or sys_platform == 'win32' and platform_machine == 'AMD64')";
const TOOLKIT = `Requires-Dist: nvidia-cublas==13.4.1.3.*; ${linux} and extra == 'all'
Requires-Dist: nvidia-cuda-crt==13.2.86.*; ${linux} and extra == 'crt'
Requires-Dist: nvidia-cublas==13.4.1.3.*; ${linux} and extra == 'cublas'
Requires-Dist: nvidia-nvjitlink<14,>=13.2.86; ${linux} and extra == 'cublas'
Requires-Dist: nvidia-cuda-runtime==13.2.86.*; ${linux} and extra == 'cudart'
Requires-Dist: nvidia-cufft==12.2.0.57.*; ${linux} and extra == 'cufft'
`;

let machine: FakeMachine;
beforeEach(() => {
  machine = fakeMachine();
});
afterEach(() => machine.dispose());

test('what torch requires, without its Python side; and what is behind the extras, with what compiling needs', () => {
  expect(cudaRequirements(TORCH)).toEqual([
    { name: 'cuda-toolkit', extras: ['cublas', 'cudart', 'crt', 'cccl'], versions: '==13.2.2' },
    { name: 'nvidia-nccl-cu13', extras: [], versions: '==2.30.7' },
  ]);
  expect(extraRequirements(TOOLKIT, ['cublas', 'cudart', 'crt']).map(({ name, versions }) => name + versions)).toEqual([
    'nvidia-cuda-crt==13.2.86.*',
    'nvidia-cublas==13.4.1.3.*',
    'nvidia-nvjitlink<14,>=13.2.86',
    'nvidia-cuda-runtime==13.2.86.*',
  ]);
});

test('every wheel that torch 2.15.0 and its toolkit require with --cuda has a known hash, for both kinds of processors', () => {
  const names = ['cublas', 'cuda_cccl', 'cuda_crt', 'cuda_cupti', 'cuda_nvrtc', 'cuda_runtime', 'cudnn_cu13', 'cufft'];
  const more = ['cufile', 'cusolver', 'cusparse', 'cusparselt_cu13', 'nccl_cu13', 'nvjitlink', 'nvshmem_cu13', 'nvtx'];
  for (const name of [...names, ...more])
    for (const processor of ['x86_64', 'aarch64']) {
      const known = [...WHEEL_HASHES.keys()].filter(
        (file) => file.startsWith(`nvidia_${name}-`) && file.endsWith(`${processor}.whl`),
      );
      expect(known, `${name}, ${processor}`).not.toHaveLength(0);
    }
});

test.each([
  ['nvidia-cublas', '==13.4.1.3.*', 'nvidia_cublas-13.4.1.3-py3-none-any.whl', true],
  ['nvidia-cublas', '==13.4.1.3.*', 'nvidia_cublas-13.4.1.30-py3-none-any.whl', false],
  ['nvidia-nccl-cu13', '==2.30.7', 'nvidia_nccl_cu13-2.30.7-py3-none-any.whl', true],
  ['nvidia-nccl-cu13', '==2.30.7', 'nvidia_nccl_cu13-2.30.71-py3-none-any.whl', false],
  ['nvidia-nvjitlink', '<14,>=13.2.86', 'nvidia_nvjitlink-13.4.5-py3-none-any.whl', true],
  ['nvidia-nvjitlink', '<14,>=13.2.86', 'nvidia_nvjitlink-12.8.5-py3-none-any.whl', false],
])('%s%s: %s %s', (name, versions, file, fits) => {
  expect(nvidiaWheel({ name, versions, extras: [] }).file.test(file)).toBe(fits);
});

test('the parts for CUDA come to a libtorch that is there, headers and libraries, and nothing of Python', async () => {
  publishWheels(machine, '2.15.0');
  const index = join(machine.root, 'index');
  const tag = 'py3-none-any';
  const wheel = (name: string, version: string, files: Record<string, string>, metadata = ''): string =>
    writeWheel(index, { name, version, tag, files, metadata });
  wheel('torch', '2.15.0', torchFiles('2.15.0'), TORCH);
  wheel('cuda_toolkit', '13.2.2', {}, TOOLKIT);
  wheel('nvidia_cuda_runtime', '13.2.86', {
    'nvidia/cu13/lib/libcudart.so.13': 'cudart',
    'nvidia/cu13/include/cuda_runtime.h': '',
  });
  wheel('nvidia_cublas', '13.4.1.3', {
    'nvidia/cu13/lib/libcublas.so.13': 'cublas',
    'nvidia/cu13/bin/tool': 'not for us',
  });
  wheel('nvidia_nvjitlink', '13.3.0', { 'nvidia/cu13/lib/libnvJitLink.so.13': 'link' });
  wheel('nvidia_cuda_crt', '13.2.86', { 'nvidia/cu13/include/crt/host_config.h': '' });
  wheel('nvidia_nccl_cu13', '2.30.7', {
    'nvidia/nccl/lib/libnccl.so.2': 'nccl',
    'nvidia/nccl/include/nccl.h': '',
    'nvidia/nccl/x.py': '',
  });
  const { libtorchDir } = machine.places;
  const fetch = (parts: ('headers' | 'cuda')[]): Promise<{ fetched: boolean }> =>
    fetchLibtorch({ places: machine.places, env: machine.env, progress: new HeardProgress(), parts });
  await fetch([]);
  expect(findLibtorch(machine.places, { env: machine.env }).found).toMatchObject({ hasCuda: false });
  await fetch(['headers', 'cuda']);
  expect(findLibtorch(machine.places, { env: machine.env }).found).toMatchObject({ hasCuda: true });
  const files = readdirSync(libtorchDir, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(so|h)\b|\.py|tool/.test(name))
    .sort();
  expect(files).toEqual([
    'nvidia/cu13/include/crt/host_config.h',
    'nvidia/cu13/include/cuda_runtime.h',
    'nvidia/cu13/lib/libcublas.so.13',
    'nvidia/cu13/lib/libcudart.so.13',
    'nvidia/cu13/lib/libcupti.so.13',
    'nvidia/cu13/lib/libnvJitLink.so.13',
    'nvidia/nccl/include/nccl.h',
    'nvidia/nccl/lib/libnccl.so.2',
    'torch/include/ATen/ATen.h',
    'torch/include/torch/headeronly/version.h',
    'torch/lib/libc10.so',
    'torch/lib/libgomp.so.1',
    'torch/lib/libtorch_cpu.so',
    'torch/lib/libtorch_cuda.so',
    'torch/version.py',
  ]);
  expect(readFileSync(join(libtorchDir, 'nvidia/nccl/lib/libnccl.so.2'), 'utf8')).toBe('nccl');
  expect(await checkLibtorch(libtorchDir, '2.15.0', true)).toBeNull();
  expect((await fetch(['headers', 'cuda'])).fetched).toBe(false);
});
