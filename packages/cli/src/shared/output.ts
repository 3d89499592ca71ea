/** @file Where results go: standard output, or a file. */
import { type cliErrorCodes, UsageError } from './usage-error.ts';

/** A result that could not be written where it should go. */
class OutputError extends Error {
  readonly code: (typeof cliErrorCodes)[number] = 'CANNOT_WRITE';
  override readonly name = 'OutputError';
}

/** Lets `| head` end the program quietly; any other failure of an output stream is told in one line. */
export function watchStream(stream: NodeJS.WriteStream, name: string): void {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(Number(process.exitCode ?? 0));
    const reason = error.code === 'ENOSPC' ? 'the disk is full' : error.message;
    if (stream !== process.stderr) process.stderr.write(`pipewright: cannot write ${name}: ${reason}\n`);
    process.exit(1);
  });
}

/** Refuses a file that cannot be written, before any work is done. */
export async function checkOutput(file: string | undefined): Promise<void> {
  if (file === undefined || file === '-') return;
  const { checkWritable } = await import('@pipewright/torch/files');
  try {
    checkWritable(file);
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}

/**
 * Writes a result to standard output, or to `file` (`-` is standard output). What cannot go to the file is printed instead,
 * so that the work is not lost.
 */
export async function writeResult(text: string, file: string | undefined): Promise<void> {
  if (file === undefined || file === '-') {
    process.stdout.write(text);
    return;
  }
  const { writeFile } = await import('@pipewright/torch/files');
  try {
    writeFile(file, text);
  } catch (error) {
    process.stdout.write(text);
    throw new OutputError(`${(error as Error).message}; the result is printed instead`);
  }
}
