/** @file Registers `pipewright inspect`. */
import { type Command, Option } from 'commander';
import { addColorFlags, addOutFlag, addSizeFlag } from '../../shared/flags.ts';
import type { InspectFlags } from './run.ts';

/** Adds the command to the program. */
export function registerInspectCommand(program: Command): void {
  const command = program
    .command('inspect <file>')
    .description(
      'show what is in a model saved by torch.export (.pt2): inputs, dynamic sizes, operators, parameters, memory',
    )
    .addOption(
      new Option('-f, --format <format>', 'what to write').choices(['table', 'json', 'graph']).default('table'),
    )
    .option('--model <name>', 'which model of the file (default: the one called model, or the only one)');
  addColorFlags(addOutFlag(addSizeFlag(command, 'the memory'))).action(async (file: string, flags: InspectFlags) => {
    const { inspect } = await import('./run.ts');
    process.exitCode = await inspect(file, flags);
  });
}
