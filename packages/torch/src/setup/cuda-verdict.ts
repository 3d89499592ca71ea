/** @file Whether tensors can be on a GPU of this machine, and else the first reason why not. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { query, which } from './base/toolchain.ts';

/** What of NVIDIA this machine has. */
export interface CudaMachine {
  /** The driver in words, or null without one. */
  readonly driver: string | null;
  /** How many GPUs the driver shows. */
  readonly gpus: number;
}

/** All that a GPU needs to be used. */
export interface CudaParts extends CudaMachine {
  /** CUDA_VISIBLE_DEVICES, which may hide the GPUs. */
  readonly visible: string | undefined;
  /** Null where there is no libtorch, or one without CUDA. */
  readonly libtorch: { readonly cudaVersion: string | null } | null;
  /** Whether the CUDA addon is built. */
  readonly hasAddon: boolean;
}

/** Whether CUDA is usable, why or why not, and whether `pipewright setup --cuda` would help. */
export interface CudaVerdict {
  readonly usable: boolean;
  readonly reason: string;
  readonly setupHelps: boolean;
}

/** What the parts come to. @example cudaVerdict({ ...findCuda(env), visible: undefined, libtorch, hasAddon: true }).usable */
export function cudaVerdict({ driver, gpus, visible, libtorch, hasAddon }: CudaParts): CudaVerdict {
  const no = (reason: string, setupHelps = false): CudaVerdict => ({ usable: false, reason, setupHelps });
  if (driver === null) return no('no NVIDIA driver found');
  if (gpus === 0)
    return no('the NVIDIA driver is installed, but shows no GPU; in a container, start it with --gpus all');
  if (visible !== undefined && /^(-1|NoDevFiles|\s*)(,|$)/.test(visible))
    return no(`CUDA_VISIBLE_DEVICES=${visible} hides every GPU; unset it`);
  if (libtorch === null) return no('libtorch is without its CUDA libraries', true);
  if (!hasAddon) return no('the CUDA addon is not built', true);
  return { usable: true, reason: `libtorch for CUDA ${libtorch.cudaVersion ?? 'unknown'}`, setupHelps: false };
}

/** Asks nvidia-smi, or the kernel's driver where that program is not in PATH. `proc` is where the driver shows itself. */
export function findCuda(env: NodeJS.ProcessEnv, proc = '/proc/driver/nvidia'): CudaMachine {
  const smi = which('nvidia-smi', env);
  const gpus = smi && query(smi, ['--query-gpu=name,driver_version', '--format=csv,noheader'], env)?.trim();
  if (gpus) return { driver: gpus, gpus: gpus.split('\n').length };
  const version = `${proc}/version`;
  if (!existsSync(version)) return { driver: null, gpus: 0 };
  // nvidia-smi fails where there is a driver and no GPU that this process may use.
  const listed = smi === null && existsSync(`${proc}/gpus`) ? readdirSync(`${proc}/gpus`).length : 0;
  return { driver: readFileSync(version, 'utf8').split('\n')[0] ?? null, gpus: listed };
}
