/** @file Registers `pipewright doctor`. */
import type { Command } from 'commander';
import type { DoctorFlags } from './run.ts';

/** Adds the command to the program. */
export function registerDoctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('check everything the engine needs; for each missing part, print the command that installs it')
    .option('--json', 'print the report as JSON')
    .action(async (flags: DoctorFlags) => {
      const { doctor } = await import('./run.ts');
      process.exitCode = await doctor(flags);
    });
}
