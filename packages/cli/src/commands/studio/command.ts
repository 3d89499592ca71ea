/** @file Registers `pipewright studio`. */
import type { Command } from 'commander';
import { port } from '../../shared/flags.ts';
import type { StudioFlags } from './run.ts';

/** Adds the command to the program. */
export function registerStudioCommand(program: Command): void {
  program
    .command('studio [paths...]')
    .description(
      'a page to explore, edit and compare schedules, open recordings and traces, and watch a job (a folder written by `run --live`)',
    )
    .option('--export <file>', 'write the page with what it shows into one HTML file instead of serving it')
    .option('--port <port>', 'port to serve on (default: a free one)', port)
    .option('--host <address>', 'address to serve on (default 127.0.0.1: only this machine)')
    .addHelpText(
      'after',
      `
Examples:
  pipewright studio                          explore schedules
  pipewright studio recording.json           look through the steps of a recorded run
  pipewright studio trace-0.json trace-1.json
                                             traces of PyTorch's profiler, one for each rank
  pipewright studio live                     watch a job that was started with: pipewright run --live live …
  pipewright studio schedule.csv --export page.html
  pipewright studio live --export page.html  a job as it is now, or as it ended
`,
    )
    .action(async (paths: string[], flags: StudioFlags) => {
      const { studio } = await import('./run.ts');
      process.exitCode = await studio(paths, flags);
    });
}
