/** @file The one error of finding, fetching, building and loading the engine; `code` says which rule was broken. */
import { TorchError } from '../../base/errors.ts';

export type AddonErrorCode =
  | 'ADDON_LOAD_FAILED'
  | 'ADDON_NOT_BUILT'
  | 'BUILD_FAILED'
  | 'BUILD_TOOL_NOT_FOUND'
  | 'DISK_TOO_FULL'
  | 'DOWNLOAD_FAILED'
  | 'LIBTORCH_NOT_FOUND'
  | 'PYTHON_NOT_FOUND'
  | 'UNSUPPORTED_PLATFORM'
  | 'WHEEL_CORRUPT';

/** @example try { await import('@pipewright/torch') } catch (error) { if (error instanceof AddonError) console.log(error.code) } */
export class AddonError extends TorchError {
  override readonly name: string = 'AddonError';
  declare readonly code: AddonErrorCode;

  constructor(code: AddonErrorCode, message: string, options?: ErrorOptions) {
    super(code, message, options);
  }
}
