/** @file Where results go: standard output that may close early, or a file that appears whole or not at all. */
import { renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describeFileError, UsageError } from './usage-error.ts';

/** Lets `| head` end the program quietly. */
export function allowEarlyClose(stream: NodeJS.WriteStream): void {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
    process.exit(0);
  });
}

/** Writes a result to standard output, or to `file` (`-` is standard output). */
export function writeResult(text: string, file: string | undefined): void {
  if (file === undefined || file === '-') process.stdout.write(text);
  else writeFileAtomically(file, text);
}

/** Writes beside the file and renames, so that readers see the old or the new content. */
export function writeFileAtomically(file: string, text: string): void {
  const temporary = join(dirname(file), `.${basename(file)}.${process.pid}.tmp`);
  try {
    if (isFolder(file)) throw new UsageError(`cannot write ${file}: it is a folder; name a file in it`);
    writeFileSync(temporary, text);
    renameSync(temporary, file);
  } catch (error) {
    rmSync(temporary, { force: true });
    if (error instanceof UsageError) throw error;
    throw new UsageError(`cannot write ${file}: ${describeFileError(error)}; check --out`);
  }
}

function isFolder(file: string): boolean {
  return statSync(file, { throwIfNoEntry: false })?.isDirectory() === true;
}
