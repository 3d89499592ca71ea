// @ts-check
/**
 * @file What files with ranks of tests do when they are run as programs: `node file.mjs 0 '<json>'` is one rank of
 * processes, with a number of threads it is all of them; the result is printed as one line of JSON.
 */
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { parentPort } from 'node:worker_threads';
import { distributed } from '@pipewright/torch';

/**
 * Runs `main` on the cases of the command line where the file at `url` is the program.
 * @param {string} url
 * @param {(cases: any) => unknown} main
 */
export async function runAsProgram(url, main) {
  if (parentPort !== null || !process.argv[1] || url !== pathToFileURL(process.argv[1]).href) return;
  const [threads, cases] = [Number(process.argv[2]), JSON.parse(process.argv[3] ?? '[]')];
  const result = threads > 0 ? await distributed.spawnThreads(threads, new URL(url), cases).done : main(cases);
  distributed.destroyProcessGroup();
  process.stdout.write(`result ${JSON.stringify(result)}\n`);
}
