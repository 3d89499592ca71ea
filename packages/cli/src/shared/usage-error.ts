/** @file The error for a command line that cannot be carried out as written: exit code 2. */

/** The codes of the command's own errors. */
export const cliErrorCodes = ['CANNOT_WRITE', 'USAGE'] as const;

/** A message for the user, who wrote something that cannot be done. */
export class UsageError extends Error {
  readonly code: (typeof cliErrorCodes)[number] = 'USAGE';

  constructor(message: string) {
    super(message);
    this.name = 'UsageError';
  }
}

/** Why a file could not be read, in words. */
export function describeFileError(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException;
  const known: Record<string, string> = {
    ENOENT: 'no such file or folder',
    EACCES: 'permission denied',
    EISDIR: 'it is a folder',
    ENOTDIR: 'part of the path is not a folder',
  };
  return (code === undefined ? undefined : known[code]) ?? message;
}
