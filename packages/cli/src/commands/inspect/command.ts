/** @file Registers `pipewright inspect`. */
import { type Command, Option } from 'commander';
import type { InspectFlags } from './run.ts';

/** Adds the command to the program. */
export function registerInspectCommand(program: Command): void {
  program
    .command('inspect <file>')
    .description(
      'what is in a model that torch.export saved (.pt2): inputs, dynamic sizes, operators, parameters, memory',
    )
    .addOption(
      new Option('-f, --format <format>', 'what to write').choices(['table', 'json', 'graph']).default('table'),
    )
    .option('--model <name>', 'which model of the file (default: the one called model, or the only one)')
    .option('--size <name=n...>', 'sizes for dynamic dimensions, for the memory: --size s0=8 s1=128')
    .option('-o, --out <file>', 'write to a file instead of standard output')
    .option('--color', 'colours even if the output is no terminal')
    .option('--no-color', 'no colours')
    .action(async (file: string, flags: InspectFlags) => {
      const { inspect } = await import('./run.ts');
      process.exitCode = await inspect(file, flags);
    });
}
