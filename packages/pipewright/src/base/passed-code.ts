/** @file Codes of errors that another error passes on. */
import type { PassedErrorCode, PipelineErrorCode } from './errors.ts';

/** The code of an error of another package or program, for the error that passes it on. */
export function passedCode(code: PassedErrorCode): PipelineErrorCode {
  return code as PipelineErrorCode;
}
