/** @file The error of a `.pt2` file that cannot be read: which file, what was found, what to do. */
import { PipelineError, type PipelineErrorCode } from '../base/errors.ts';

/** What is wrong with a file. */
export type Pt2Problem = PipelineErrorCode extends infer Code
  ? Code extends `PT2_${infer Rest}`
    ? Rest
    : never
  : never;

/** The error of a file: `code` is `PT2_` and what is wrong. */
export function pt2Error(code: Pt2Problem, path: string, message: string, cause?: unknown): PipelineError {
  const options = cause === undefined ? undefined : { cause };
  return new PipelineError(`PT2_${code}`, `${path}: ${message}`, { path }, options);
}

/** A name or text of a file as it may be shown: no control characters, not endless. */
export function shown(text: string): string {
  const clean = text.replaceAll(/\p{C}/gu, '?');
  return JSON.stringify(clean.length > 120 ? `${clean.slice(0, 117)}...` : clean);
}
