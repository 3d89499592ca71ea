/** @file The CUDA headers and libraries that the second addon is built with, where they are. */
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { which } from '../base/toolchain.ts';
import { type Libtorch, nvidiaFolders } from './find-libtorch.ts';

export interface CudaToolkit {
  /** Has cuda_runtime.h and crt/host_config.h. */
  readonly include: string;
  readonly cudart: string;
  /** Null: the addon is built without NCCL. */
  readonly nccl: { readonly include: string; readonly library: string } | null;
}

/** The headers of a toolkit, the libraries that libtorch itself uses; or why the second addon cannot be built. */
export function findCudaToolkit(libtorch: Libtorch, env: NodeJS.ProcessEnv = process.env): CudaToolkit | string {
  if (!libtorch.hasCuda) return `libtorch ${libtorch.version} in ${libtorch.dir} has no libtorch_cuda.so`;
  const beside = nvidiaFolders(libtorch);
  const nvcc = which('nvcc', env);
  const homes = [
    env['CUDA_HOME'],
    env['CUDA_PATH'],
    nvcc === null ? undefined : dirname(dirname(nvcc)),
    '/usr/local/cuda',
    '/opt/cuda',
    '/usr',
    ...beside,
  ].filter((home): home is string => Boolean(home));
  const include = homes.map((home) => join(home, 'include')).find((dir) => existsSync(join(dir, 'crt/host_config.h')));
  if (include === undefined) return 'no headers of a CUDA toolkit (crt/host_config.h); set CUDA_HOME if there is one';
  const libraryDirs = [
    join(libtorch.dir, 'lib'),
    ...beside.map((dir) => join(dir, 'lib')),
    join(dirname(include), 'lib64'),
  ];
  const cudart = findLibrary(libraryDirs, /^libcudart(-[0-9a-f]+)?\.so\.\d+/);
  if (cudart === null) return 'no libcudart.so beside libtorch';
  const ncclLibrary = findLibrary([...libraryDirs, '/usr/lib/x86_64-linux-gnu', '/usr/lib64'], /^libnccl\.so\.\d+/);
  const ncclInclude = [...beside.map((dir) => join(dir, 'include')), include, '/usr/include'].find((dir) =>
    existsSync(join(dir, 'nccl.h')),
  );
  return {
    include,
    cudart,
    nccl: ncclLibrary !== null && ncclInclude !== undefined ? { include: ncclInclude, library: ncclLibrary } : null,
  };
}

function findLibrary(dirs: readonly string[], pattern: RegExp): string | null {
  for (const dir of dirs) {
    const name = existsSync(dir) ? readdirSync(dir).find((file) => pattern.test(file)) : undefined;
    if (name !== undefined) return join(dir, name);
  }
  return null;
}
