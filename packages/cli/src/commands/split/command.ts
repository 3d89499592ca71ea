/** @file Registers `pipewright split`. */
import { type Command, Option } from 'commander';
import { addOutputFlags, addSizeFlag, count } from '../../shared/flags.ts';
import type { SplitFlags } from './run.ts';

/** Adds the command to the program. */
export function registerSplitCommand(program: Command): void {
  const command = program
    .command('split <file>')
    .description(
      'show how a model saved by torch.export (.pt2) would be split into stages: layers, parameters, traffic, cost',
    )
    .option('-s, --stages <n>', 'number of stages of about equal cost', count)
    .option(
      '--at <name:point...>',
      'split before or after these modules: --at layers.4:beginning layers.7:end (default: the split points in the model)',
    )
    .addOption(
      new Option(
        '--multi-use <rule>',
        'parameters used by several stages: a copy in each, or sent between them',
      ).choices(['replicate', 'transmit']),
    )
    .addOption(
      new Option('--shared <rule>', 'values that several stages need (default: auto with --stages, else send)').choices(
        ['send', 'recompute', 'auto'],
      ),
    )
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['table', 'json', 'svg']).default('table'))
    .option('--model <name>', 'which model of the file (default: the one called model, or the only one)');
  addOutputFlags(addSizeFlag(command, 'traffic and cost')).action(async (file: string, flags: SplitFlags) => {
    const { split } = await import('./run.ts');
    process.exitCode = await split(file, flags);
  });
}
