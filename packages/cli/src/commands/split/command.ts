/** @file Registers `pipewright split`. */
import { type Command, Option } from 'commander';
import { count } from '../../shared/flags.ts';
import type { SplitFlags } from './run.ts';

/** Adds the command to the program. */
export function registerSplitCommand(program: Command): void {
  program
    .command('split <file>')
    .description(
      'how a model that torch.export saved (.pt2) would be cut into stages: layers, parameters, traffic, cost',
    )
    .option('-s, --stages <n>', 'number of stages of about equal cost', count)
    .option(
      '--at <name:point...>',
      'borders before or after modules: --at layers.4:beginning layers.7:end (default: the marks in the model)',
    )
    .addOption(
      new Option('--multi-use <rule>', 'parameters of several stages: a copy in each, or sent').choices([
        'replicate',
        'transmit',
      ]),
    )
    .addOption(
      new Option('--shared <rule>', 'values that several stages use (default: auto with --stages, else send)').choices([
        'send',
        'recompute',
        'auto',
      ]),
    )
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['table', 'json', 'svg']).default('table'))
    .option('--model <name>', 'which model of the file (default: the one called model, or the only one)')
    .option('--size <name=n...>', 'sizes for dynamic dimensions, for traffic and cost: --size s0=8 s1=128')
    .option('-o, --out <file>', 'write to a file instead of standard output')
    .option('--color', 'colours even if the output is no terminal')
    .option('--no-color', 'no colours')
    .option('--width <n>', 'pixels of an SVG picture', count)
    .action(async (file: string, flags: SplitFlags) => {
      const { split } = await import('./run.ts');
      process.exitCode = await split(file, flags);
    });
}
