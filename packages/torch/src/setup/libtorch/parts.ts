/** @file Which wheels, and which files of them, are needed: to run on the CPU, to compile, to use a GPU. */
import { AddonError } from '../base/addon-error.ts';

/** `runtime` is always there; `headers` where something is compiled; `cuda` where it was asked for. */
export type LibtorchPart = 'runtime' | 'headers' | 'cuda';

export interface WheelNeed {
  /** What pip is asked for. */
  readonly requirement: string;
  /** Matches the file name of a wheel that satisfies it. */
  readonly file: RegExp;
  /** What one of its files belongs to; null: it is left out. */
  readonly partOf: (name: string) => LibtorchPart | null;
}

/** Libraries of the torch wheel that only a GPU needs: more than half of it; and those that only Python needs. */
const FOR_CUDA = /^lib(torch_cuda.*|c10_cuda|torch_nvshmem|caffe2_nvrtc)\.so/;
const FOR_PYTHON = /^lib(torch_python|torch_global_deps|shm)\.so/;
/** Headers for other devices and for Python, and those of single operators that only libtorch itself includes: half of all. */
const UNNEEDED_HEADERS =
  /^torch\/include\/(google|pybind11|tensorpipe|c10\/(xpu|metal|hip)|ATen\/(xpu|mps|miopen|hip|vulkan|metal|ops\/.+_(cuda|meta|composite\w+)_dispatch\.h))\b/;

/** torch itself: headers, version and the CPU libraries with what they were shipped with. */
export function torchWheel(version: string): WheelNeed {
  return {
    requirement: `torch==${version}`,
    file: new RegExp(`^torch-${escapeRegExp(version)}(\\+[\\w.]+)?-.*(${machine()}|any)\\.whl$`),
    partOf: (name) => {
      const library = /^torch\/lib\/([^/]+)$/.exec(name)?.[1];
      if (library !== undefined) return libraryPart(library);
      if (name.startsWith('torch/include/')) return UNNEEDED_HEADERS.test(name) ? null : 'headers';
      return name === 'torch/version.py' || name.startsWith('torch.libs/') ? 'runtime' : null;
    },
  };
}

function libraryPart(library: string): LibtorchPart | null {
  if (!library.includes('.so') || FOR_PYTHON.test(library)) return null;
  return FOR_CUDA.test(library) ? 'cuda' : 'runtime';
}

/** A wheel by the name and the versions of a requirement: `==13.2.*`, `==9.26.0.51`, `<14,>=13.2.86` (any of that major). */
export function wheelNeed(name: string, versions: string, partOf: WheelNeed['partOf']): WheelNeed {
  const exact = /^==([\d.]+?)(\.\*)?$/.exec(versions);
  const major = /[>~]=(\d+)\./.exec(versions)?.[1] ?? '\\d+';
  const version = exact ? `${escapeRegExp(exact[1] ?? '')}${exact[2] ? '(\\.[\\d.]+)?' : ''}` : `${major}\\.[\\d.]+`;
  return {
    requirement: `${name}${versions}`,
    file: new RegExp(`^${name.replaceAll('-', '_')}-${version}-.*(${machine()}|any)\\.whl$`),
    partOf,
  };
}

/**
 * Wheels built for CUDA need two of its small libraries even where there is no GPU; they look for them in a folder
 * beside torch, so the layout of site-packages is kept.
 */
export function cudaWheels(cudaVersion: string | null): WheelNeed[] {
  if (cudaVersion === null) return [];
  const [major = '', minor = ''] = cudaVersion.split('.');
  const suffix = Number(major) < 13 ? `-cu${major}` : '';
  return ['runtime', 'cupti'].map((part) => ({
    requirement: `nvidia-cuda-${part}${suffix}==${major}.${minor}.*`,
    file: new RegExp(
      `^nvidia_cuda_${part}${suffix.replace('-', '_')}-${major}\\.${minor}\\.[\\d.]+-.*(${machine()}|any)\\.whl$`,
    ),
    partOf: (name: string) => (/\/lib(cudart|cupti)\.so\.\d+$/.test(name) ? 'runtime' : null),
  }));
}

/** For a Python that the wheel does not know: we need no Python code of it, so another one's wheel does as well. */
export function otherPythonArguments(): string[] {
  const platform = `manylinux_2_28_${machine()}`;
  return [
    '--only-binary=:all:',
    '--implementation=cp',
    '--python-version=3.12',
    '--abi=cp312',
    `--platform=${platform}`,
  ];
}

function machine(): string {
  const known: Partial<Record<string, string>> = { x64: 'x86_64', arm64: 'aarch64' };
  const name = process.platform === 'linux' ? known[process.arch] : undefined;
  if (name === undefined)
    throw new AddonError(
      'UNSUPPORTED_PLATFORM',
      `fetchLibtorch: there is no wheel known for ${process.platform} on ${process.arch} (Linux on x64 or arm64 is); ` +
        'unpack a libtorch of your own and set PIPEWRIGHT_LIBTORCH to its folder',
    );
  return name;
}

function escapeRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
