/** @file Registers `pipewright schedule`. */
import { type Command, Option } from 'commander';
import { addCostFlags, addOutputFlags, addShapeFlags } from '../../shared/flags.ts';
import { helpExamples } from '../../shared/help.ts';
import type { ScheduleFlags } from './run.ts';

/** Adds the command to the program. */
export function registerScheduleCommand(program: Command): void {
  const command = program
    .command('schedule')
    .description('build a schedule by name, or read one from a file, and print or draw it')
    .argument('[name]', 'name of a schedule, or a .csv or .json file, or - for standard input');
  addShapeFlags(command)
    .option('--lower', 'add sends, receives, unsharding and gradient reduction')
    .option('--merge', 'merge neighbouring I and W into B first')
    .option(
      '--header',
      'start CSV with a line that gives the name of the schedule and its shape (PyTorch does not read it)',
    )
    .option('--list', 'list all schedules')
    .addOption(
      new Option('-f, --format <format>', 'what to write (default: by the name of --out, else table)').choices([
        'table',
        'timeline',
        'csv',
        'json',
        'svg',
        'trace',
      ]),
    );
  addOutputFlags(addCostFlags(command))
    .addHelpText(
      'after',
      helpExamples([
        ['schedule --list', 'all schedules'],
        ['schedule 1F1B -p 4 -m 8', 'as a table'],
        ['schedule zbv -p 4 -m 8 -f timeline', 'as a picture to scale'],
        ['schedule DualPipeV -p 4 -m 10 --lower -o dualpipe.csv', 'with sends and receives, as PyTorch reads it'],
        ['schedule Interleaved1F1B -p 4 -s 2 -m 8 --comm 0.2 -o step.svg', 'drawn with slow messages'],
        ['schedule mine.csv -f trace -o trace.json', 'for ui.perfetto.dev'],
      ]),
    )
    .action(async (name: string | undefined, flags: ScheduleFlags) => {
      const { schedule } = await import('./run.ts');
      process.exitCode = await schedule(name, flags);
    });
}
