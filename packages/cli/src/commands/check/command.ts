/** @file Registers `pipewright check`. */
import { type Command, Option } from 'commander';
import { addColorFlags, addOutFlag, count } from '../../shared/flags.ts';
import { helpExamples } from '../../shared/help.ts';
import type { CheckFlags } from './run.ts';

/** Adds the command to the program. */
export function registerCheckCommand(program: Command): void {
  const command = program
    .command('check')
    .description('check a schedule against every rule, deadlocks included; exit code 1 if a rule is broken')
    .argument('<file>', 'a .csv or .json file, or - for standard input')
    .option('--stages <n>', 'number of stages to expect, if the file does not say', count)
    .option('-m, --microbatches <n>', 'number of microbatches to expect, if the file does not say', count)
    .option('--limit <n>', 'the most violations to report (default 100)', count)
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['text', 'json']).default('text'));
  addColorFlags(addOutFlag(command))
    .addHelpText(
      'after',
      helpExamples([
        ['check mine.csv', ''],
        ['check exported.csv --stages 8 -m 16', 'counts that a file without a header cannot give'],
        ['schedule 1F1B -p 4 -m 8 --lower -f csv | pipewright check -', ''],
      ]),
    )
    .action(async (file: string, flags: CheckFlags) => {
      const { check } = await import('./run.ts');
      process.exitCode = await check(file, flags);
    });
}
