/** @file Launches ranks as threads, one launch after the other, and prints how each went as JSON. For tests. */
import { writeSync } from 'node:fs';
import { LaunchError, launch } from '../../dist/launch/launcher.js';

const script = new URL('./scenarios.ts', import.meta.url);
for (const { interrupt, ...options } of JSON.parse(process.argv[2] ?? '')) {
  const lines = /** @type {string[]} */ ([]);
  const ranks = launch({
    ...options,
    mode: 'threads',
    script,
    onLine: (line, { rank, stream }) => lines.push(`${rank} ${stream}: ${line}`),
  });
  if (interrupt) {
    while (ranks.places().some(({ state }) => state === 'silent'))
      await new Promise((resolve) => setTimeout(resolve, 10));
    ranks.end('SIGINT');
  }
  const outcome = await ranks.done.then(
    (values) => ({ values }),
    (error) => ({
      // Fields of errors are hidden where they are printed.
      error: Object.fromEntries(Object.getOwnPropertyNames(error).map((name) => [name, error[name]])),
      report: error instanceof LaunchError ? error.report() : '',
    }),
  );
  writeSync(1, `${JSON.stringify({ lines, ...outcome })}\n`);
}
