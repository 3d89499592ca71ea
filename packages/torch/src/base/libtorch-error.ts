/** @file Errors that come out of libtorch: its texts cut to the sentence that helps, with the way out where we know one. */
import { TorchError, type TorchErrorCode } from './errors.ts';

/** Why CUDA cannot be used; empty where it can. */
type CudaProblem = () => string;

/** The class that the addon throws: a TorchError whose text has been cut. */
export function libtorchErrorClass(
  cudaProblem: CudaProblem,
): new (
  code: TorchErrorCode,
  message: string,
) => TorchError {
  return class extends TorchError {
    constructor(code: TorchErrorCode, message: string) {
      const told = readLibtorchError(code, message, cudaProblem);
      super(told.code, told.message);
    }
  };
}

/** An error's code and text, cut. */
export function readLibtorchError(
  code: TorchErrorCode,
  message: string,
  cudaProblem: CudaProblem,
): { readonly code: TorchErrorCode; readonly message: string } {
  const missing =
    /^(.*?)Could not run '([^']+)' with arguments from the '(\w+)' backend\.[^]*?only available for these backends: \[([^\]]*)\]/.exec(
      message,
    );
  if (missing !== null) {
    const [, where = '', op = '', backend = '', list = ''] = missing;
    if (backend === 'CUDA' && cudaProblem() !== '') return noCuda(where, cudaProblem());
    const device = backend.toLowerCase();
    return /^aten::empty\b/.test(op)
      ? { code, message: `${where}this build of libtorch has no device '${device}'; use ${devices(list)}` }
      : {
          code,
          message: `${where}libtorch has no ${op} for ${device} tensors; devices that have it: ${devices(list)}`,
        };
  }
  const unlinked = /^(.*?)PyTorch is not linked with support for (\w+) devices/.exec(message);
  if (unlinked !== null) {
    const [, where = '', device = ''] = unlinked;
    if (device === 'cuda') return noCuda(where, cudaProblem() || 'this libtorch was built without it');
    return { code, message: `${where}this build of libtorch has no device '${device}'; use 'cpu'` };
  }
  return { code, message: withoutTrace(message) };
}

function noCuda(where: string, problem: string): { code: TorchErrorCode; message: string } {
  return {
    code: 'NO_CUDA',
    message: `${where}there is no CUDA here: ${problem}; use device: 'cpu', or see npx pipewright doctor`,
  };
}

/** The devices among libtorch's backends, most of which are layers of its own. */
function devices(list: string): string {
  const real = list.split(', ').filter((name) => ['CPU', 'CUDA', 'MPS', 'XPU'].includes(name));
  return real.map((name) => `'${name.toLowerCase()}'`).join(', ') || 'none of them here';
}

/** Without the C++ stack, the list of registrations and the advice on environment variables of CUDA. */
function withoutTrace(message: string): string {
  const end = message.search(
    /\n(?:Exception raised from|CUDA kernel errors might|For debugging consider|Compile with `TORCH_USE_CUDA_DSA`|\n\w+: (?:fallthrough )?registered at|C\+\+ CapturedTraceback)/,
  );
  return (end < 0 ? message : message.slice(0, end)).trimEnd();
}
