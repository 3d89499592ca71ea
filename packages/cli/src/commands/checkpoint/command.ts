/** @file Registers `pipewright checkpoint` and what it can do. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { addColorFlags, addOutFlag, count } from '../../shared/flags.ts';
import { helpExamples } from '../../shared/help.ts';
import type { ConvertFlags, ExportFlags, ShowFlags } from './run.ts';

/** Adds the command to the program. */
export function registerCheckpointCommand(program: Command): void {
  const command = program
    .command('checkpoint')
    .description('show, verify, convert and export checkpoints')
    .addHelpText(
      'after',
      helpExamples([
        ['checkpoint show runs/gpt', 'the checkpoints of a run'],
        ['checkpoint verify runs/gpt', 'every byte of the latest one'],
        ['checkpoint export-hf runs/gpt models/gpt', 'its weights for Hugging Face tools'],
      ]),
    );
  const show = command
    .command('show <folder>')
    .description('show the checkpoints of a folder, or what is in one of them')
    .addOption(new Option('-f, --format <format>', 'what to write').choices(['table', 'json']).default('table'));
  addColorFlags(addOutFlag(show)).action(async (folder: string, flags: ShowFlags) => {
    process.exitCode = await (await import('./run.ts')).showCheckpoints(folder, flags);
  });
  command
    .command('verify <folder>')
    .description('compare every byte of a checkpoint with its manifest; names the files that differ')
    .action(async (folder: string) => {
      process.exitCode = await (await import('./run.ts')).verify(folder);
    });
  command
    .command('convert <from> <to>')
    .description('rewrite a checkpoint with unsharded tensors')
    .option('--files <n>', 'number of weight files, and of optimizer state files', count)
    .action(async (from: string, to: string, flags: ConvertFlags) => {
      process.exitCode = await (await import('./run.ts')).convert(from, to, flags);
    });
  command
    .command('export-hf <from> <to>')
    .description('write the weights of a checkpoint as Hugging Face tools read them')
    .option('--rename <old=new...>', 'rename prefixes: --rename blocks=transformer.h', pair)
    .option('--transpose <end...>', 'transpose weights with these name suffixes: --transpose attn.c_attn.weight')
    .addOption(
      new Option('--dtype <type>', 'the type of the weights (default: as they are)').choices([
        'float32',
        'bfloat16',
        'float16',
      ]),
    )
    .option('--max-bytes <n>', 'the largest file (default: 5000000000)', count)
    .action(async (from: string, to: string, flags: ExportFlags) => {
      process.exitCode = await (await import('./run.ts')).exportHf(from, to, flags);
    });
}

/** `old=new` as an entry of a table. */
function pair(text: string, earlier: Readonly<Record<string, string>> | undefined): Record<string, string> {
  const match = /^([^=]*)=([^=]*)$/.exec(text);
  if (match === null) throw new InvalidArgumentError('Write two names, as in --rename blocks=transformer.h.');
  return { ...earlier, [match[1]!]: match[2]! };
}
