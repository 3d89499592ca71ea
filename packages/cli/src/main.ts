/** @file The command line: registers the commands. Each one's code is imported when it runs, so `--help` is quick. */
import { Command } from 'commander';

/** The program with all its commands. */
export function createProgram(): Command {
  const program = new Command('pipewright')
    .description('Pipeline-parallel training in TypeScript on libtorch')
    .showHelpAfterError('(add --help for the options)')
    .enablePositionalOptions();

  program
    .command('doctor')
    .description('look at everything the engine stands on; for each missing part, the command that brings it')
    .option('--json', 'print the report as JSON')
    .action(async (options: { json?: boolean }) => {
      const { doctor } = await import('./commands/doctor.ts');
      process.exitCode = await doctor(options);
    });

  program
    .command('setup')
    .description('find or fetch libtorch and build the addon; does nothing where nothing is missing')
    .option('--verify', 'check every file of the fetched libtorch by hash, and build the addon again')
    .action(async (options: { verify?: boolean }) => {
      const { setup } = await import('./commands/setup.ts');
      process.exitCode = await setup(options);
    });

  return program;
}

/** Runs the command line; errors of ours are a message, not a stack. */
export async function main(argv: readonly string[]): Promise<void> {
  try {
    await createProgram().parseAsync(argv);
  } catch (error) {
    if (!(error instanceof Error && 'code' in error)) throw error;
    console.error(process.env['PIPEWRIGHT_DEBUG'] ? error : `${error.name}: ${error.message}`);
    process.exitCode = 1;
  }
}
