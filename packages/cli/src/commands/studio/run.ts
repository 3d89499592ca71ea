/** @file `pipewright studio`: serves the page until Ctrl-C, or writes it into a file. */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { checkOutput, writeResult } from '../../shared/output.ts';
import { readText } from '../../shared/source.ts';
import { describeFileError, UsageError } from '../../shared/usage-error.ts';

/** The flags of the command. */
export interface StudioFlags {
  readonly export?: string;
  readonly port?: number;
  readonly host?: string;
}

/** Runs the command; returns the exit code. */
export async function studio(paths: readonly string[], flags: StudioFlags): Promise<number> {
  const { pageWith, readLiveLines, serveStudio } = await import('@pipewright/studio');
  const { files, live } = open(paths);
  await checkOutput(flags.export);
  if (flags.export !== undefined) {
    const lines = live === undefined ? undefined : readLiveLines(live);
    if (lines?.length === 0)
      throw new UsageError(`${live} is not the folder of a job: \`pipewright run --live ${live} …\` writes one`);
    await writeResult(pageWith({ files, events: null, ...(lines === undefined ? {} : { lines }) }), flags.export);
    return 0;
  }
  const served = await serveStudio({
    files,
    ...(live === undefined ? {} : { live }),
    ...(flags.host === undefined ? {} : { host: flags.host }),
    ...(flags.port === undefined ? {} : { port: flags.port }),
  }).catch((error: unknown) => {
    throw new UsageError(`cannot serve: ${describeFileError(error)}; choose another --port or --host`);
  });
  if (live !== undefined && readLiveLines(live).length === 0)
    console.error(`pipewright: no job has written into ${live} yet; \`pipewright run --live ${live} …\` does`);
  // Who reads the address may end it at once.
  const ended = new Promise<void>((resolve) => {
    process.once('SIGINT', () => resolve());
    process.once('SIGTERM', () => resolve());
  });
  console.log(`pipewright: the studio is at ${served.url}  (Ctrl-C ends it)`);
  await ended;
  await served.close();
  return 0;
}

/** Files to show, or the folder of a job. */
function open(paths: readonly string[]): { files: { name: string; text: string }[]; live: string | undefined } {
  const folder = paths.find((path) => statSync(path, { throwIfNoEntry: false })?.isDirectory() === true);
  if (folder !== undefined) {
    if (paths.length > 1) throw new UsageError(`${folder} is the folder of a job: name it alone, or name files`);
    const plan = join(folder, 'plan.json');
    const files = existsSync(plan) ? [{ name: 'plan.json', text: readFileSync(plan, 'utf8') }] : [];
    return { files, live: folder };
  }
  const files = paths.map((path) => {
    const text = textIn(path);
    if (text.includes('\0'))
      throw new UsageError(`${path} is not text; give schedules, plans, recordings or traces as CSV or JSON`);
    return { name: basename(path).replace(/\.gz$/i, ''), text };
  });
  return { files, live: undefined };
}

/** Largest file that is unpacked, in bytes. */
const mostUnpacked = 512 * 1024 * 1024;

/** The text of a file; a compressed one is unpacked, as the page does it. */
function textIn(path: string): string {
  if (!/\.gz$/i.test(path)) return readText(path);
  try {
    return gunzipSync(readFileSync(path), { maxOutputLength: mostUnpacked }).toString('utf8');
  } catch (error) {
    throw new UsageError(`cannot unpack ${path}: ${describeFileError(error)}`);
  }
}
