/** @file Registers `pipewright setup`. */
import type { Command } from 'commander';
import type { SetupFlags } from './run.ts';

/** Adds the command to the program. */
export function registerSetupCommand(program: Command): void {
  program
    .command('setup')
    .description('find or download libtorch and build the addon; does nothing if both are there')
    .option('--cuda', 'also bring the CUDA libraries of libtorch and of NVIDIA, several GB, and build the CUDA addon')
    .option('--verify', 'check every file of the downloaded libtorch by hash, and build the addon again')
    .action(async (flags: SetupFlags) => {
      const { setup } = await import('./run.ts');
      process.exitCode = await setup(flags);
    });
}
