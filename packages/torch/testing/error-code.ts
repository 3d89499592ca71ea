/** @file The code of an error, for tests of what is refused. */
import { TorchError } from '../src/index.ts';

/** The code of the error that something throws. */
export function codeOf(body: () => unknown): string {
  try {
    body();
  } catch (error) {
    if (error instanceof TorchError) return error.code;
    throw error;
  }
  return 'no error';
}
