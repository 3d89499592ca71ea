/** @file Registers `pipewright simulate`. */
import { type Command, Option } from 'commander';
import { addCostFlags, addOutputFlags, addShapeFlags } from '../../shared/flags.ts';
import { helpExamples } from '../../shared/help.ts';
import type { SimulateFlags } from './run.ts';

/** Adds the command to the program. */
export function registerSimulateCommand(program: Command): void {
  const command = program
    .command('simulate')
    .description('simulate a step with given costs: time, bubble, communication, memory, critical path')
    .argument('<name>', 'name of a schedule, or a .csv or .json file, or - for standard input');
  addShapeFlags(command)
    .option('--lower', 'simulate sends and receives as actions of their own')
    .addOption(
      new Option('-f, --format <format>', 'what to write (default: by the name of --out, else text)').choices([
        'text',
        'json',
        'timeline',
        'svg',
        'trace',
      ]),
    );
  addOutputFlags(addCostFlags(command))
    .addHelpText(
      'after',
      helpExamples([
        ['simulate 1F1B -p 4 -m 8 --F 1 --B 2', ''],
        ['simulate ZB1P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6', ''],
        ['simulate 1F1B -p 4 -m 8 --F 1,1,1,2', 'a slower last stage'],
        ['simulate mine.csv --costs costs.json -f json', ''],
        ['schedule gpipe -p 4 -m 8 -f json | pipewright simulate -', 'from standard input'],
      ]),
    )
    .action(async (name: string, flags: SimulateFlags) => {
      const { simulate } = await import('./run.ts');
      process.exitCode = await simulate(name, flags);
    });
}
