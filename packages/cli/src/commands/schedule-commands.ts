/** @file Registers the commands about schedules; none of them needs libtorch. */
import { type Command, Option } from 'commander';
import { addCostFlags, addOutputFlags, addShapeFlags, count } from '../shared/flags.ts';
import type { CheckFlags } from './check/run.ts';
import type { CompareFlags } from './compare/run.ts';
import type { ScheduleFlags } from './schedule/run.ts';
import type { SimulateFlags } from './simulate/run.ts';

/** Adds `schedule`, `simulate`, `compare` and `check`. */
export function registerScheduleCommands(program: Command): void {
  const schedule = program
    .command('schedule')
    .description('build a schedule by name, or read one, and print or draw it')
    .argument('[name]', 'name of a schedule, or a .csv or .json file, or - for standard input');
  addShapeFlags(schedule)
    .option('--lower', 'add sends, receives, unsharding and gradient reduction')
    .option('--merge', 'join neighbouring I and W to B first')
    .option('--header', 'begin CSV with a line that names the schedule and its numbers (PyTorch reads CSV without)')
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
  addOutputFlags(addCostFlags(schedule))
    .addHelpText(
      'after',
      examples([
        ['schedule --list', 'all schedules'],
        ['schedule 1F1B -p 4 -m 8', 'as a table'],
        ['schedule zbv -p 4 -m 8 -f timeline', 'as a picture to scale'],
        ['schedule DualPipeV -p 4 -m 10 --lower -o dualpipe.csv', 'with sends and receives, for PyTorch or by hand'],
        ['schedule Interleaved1F1B -p 4 -s 2 -m 8 --comm 0.2 -o step.svg', 'drawn with slow messages'],
        ['schedule mine.csv -f trace -o trace.json', 'for ui.perfetto.dev'],
      ]),
    )
    .action(async (name: string | undefined, flags: ScheduleFlags) => {
      const command = await import('./schedule/run.ts');
      process.exitCode = await command.schedule(name, flags);
    });

  const simulate = program
    .command('simulate')
    .description('play a schedule with costs: time, idle share, communication, memory, critical path')
    .argument('<name>', 'name of a schedule, or a .csv or .json file, or - for standard input');
  addShapeFlags(simulate)
    .option('--lower', 'play it with its sends and receives as actions of their own')
    .addOption(
      new Option('-f, --format <format>', 'what to write (default: by the name of --out, else text)').choices([
        'text',
        'json',
        'timeline',
        'svg',
        'trace',
      ]),
    );
  addOutputFlags(addCostFlags(simulate))
    .addHelpText(
      'after',
      examples([
        ['simulate 1F1B -p 4 -m 8 --F 1 --B 2', ''],
        ['simulate ZB1P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6', ''],
        ['simulate 1F1B -p 4 -m 8 --F 1,1,1,2', 'a slower last stage'],
        ['simulate mine.csv --costs costs.json -f json', ''],
        ['schedule gpipe -p 4 -m 8 -f json | pipewright simulate -', 'from standard input'],
      ]),
    )
    .action(async (name: string, flags: SimulateFlags) => {
      const command = await import('./simulate/run.ts');
      process.exitCode = await command.simulate(name, flags);
    });

  const compare = program
    .command('compare')
    .description('several schedules on the same work: makespan, idle shares, peak memory; the best is marked')
    .argument('[names...]', 'names of schedules, NAME:STAGES_PER_RANK, or files; none: all that can do the shape');
  addShapeFlags(compare)
    .option('--all-ranks', `show every rank, also of more than 16`)
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['text', 'json']).default('text'));
  addOutputFlags(addCostFlags(compare))
    .addHelpText(
      'after',
      `\nCosts are those of a rank's whole share of the model; they are dealt to its stages, so that every\nschedule does the same work.\n${examples(
        [
          ['compare -p 4 -m 8', 'all schedules'],
          ['compare 1F1B Interleaved1F1B:2 Interleaved1F1B:4 ZBV -p 8 -m 32', ''],
          ['compare ZB1P ZB2P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6 -f json', ''],
        ],
      )}`,
    )
    .action(async (names: string[], flags: CompareFlags) => {
      const command = await import('./compare/run.ts');
      process.exitCode = await command.compare(names, flags);
    });

  program
    .command('check')
    .description('check a schedule against every rule, deadlocks included; exit code 1 if one is broken')
    .argument('<file>', 'a .csv or .json file, or - for standard input')
    .option('--stages <n>', 'stages there must be, if the file does not say', count)
    .option('-m, --microbatches <n>', 'microbatches there must be, if the file does not say', count)
    .option('--limit <n>', 'the most violations to report (default 100)', count)
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['text', 'json']).default('text'))
    .option('-o, --out <file>', 'write to a file instead of standard output')
    .option('--color', 'colours even if the output is no terminal')
    .option('--no-color', 'no colours')
    .addHelpText(
      'after',
      examples([
        ['check mine.csv', ''],
        ['check exported.csv --stages 8 -m 16', 'counts that a file without header cannot say'],
        ['schedule 1F1B -p 4 -m 8 --lower -f csv | pipewright check -', ''],
      ]),
    )
    .action(async (file: string, flags: CheckFlags) => {
      const command = await import('./check/run.ts');
      process.exitCode = await command.check(file, flags);
    });
}

/** The examples of a help page, with what they show. */
function examples(lines: readonly (readonly [command: string, says: string])[]): string {
  const width = Math.max(...lines.map(([command]) => command.length));
  const text = lines.map(
    ([command, says]) => `  pipewright ${says === '' ? command : `${command.padEnd(width)}  ${says}`}`,
  );
  return `\nExamples:\n${text.join('\n')}`;
}
