/** @file Registers `pipewright compare`. */
import { type Command, Option } from 'commander';
import { addCostFlags, addOutputFlags, addShapeFlags } from '../../shared/flags.ts';
import { helpExamples } from '../../shared/help.ts';
import type { CompareFlags } from './run.ts';

/** Adds the command to the program. */
export function registerCompareCommand(program: Command): void {
  const command = program
    .command('compare')
    .description('compare schedules on the same work: makespan, bubble, peak memory; the best values are marked')
    .argument('[names...]', 'names of schedules, NAME:STAGES_PER_RANK, or files (default: all that support the shape)');
  addShapeFlags(command)
    .option('--all-ranks', 'show every rank even if there are more than 16')
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['text', 'json']).default('text'));
  addOutputFlags(addCostFlags(command))
    .addHelpText(
      'after',
      `\nCosts are those of everything one rank holds. They are divided evenly among its stages, so that every\nschedule does the same work. Schedules above --memory-limit, which is for activations and not for parameters, are\nmarked and cannot be the best.\n${helpExamples(
        [
          ['compare -p 4 -m 8', 'all schedules'],
          ['compare 1F1B Interleaved1F1B:2 Interleaved1F1B:4 ZBV -p 8 -m 32', ''],
          ['compare ZB1P ZB2P -p 8 -m 24 --F 18.5 --I 18.1 --W 9.3 --comm 0.6 -f json', ''],
        ],
      )}`,
    )
    .action(async (names: string[], flags: CompareFlags) => {
      const { compare } = await import('./run.ts');
      process.exitCode = await compare(names, flags);
    });
}
