/** @file The command line: registers the commands. Each one's code is imported when it runs, so `--help` is quick. */
import { readFileSync } from 'node:fs';
import type { ScheduleErrorCode } from '@pipewright/schedule';
import { Command, CommanderError } from 'commander';
import type { PipelineErrorCode } from 'pipewright';
import { registerCheckCommand } from './commands/check/command.ts';
import { registerCheckpointCommand } from './commands/checkpoint/command.ts';
import { registerCompareCommand } from './commands/compare/command.ts';
import { registerDoctorCommand } from './commands/doctor/command.ts';
import { registerInspectCommand } from './commands/inspect/command.ts';
import { registerPlanCommand } from './commands/plan/command.ts';
import { registerRunCommand } from './commands/run/command.ts';
import { registerScheduleCommand } from './commands/schedule/command.ts';
import { registerSetupCommand } from './commands/setup/command.ts';
import { registerSimulateCommand } from './commands/simulate/command.ts';
import { registerSplitCommand } from './commands/split/command.ts';
import { registerStudioCommand } from './commands/studio/command.ts';
import { inFlagWords } from './shared/flag-words.ts';
import { checkOutput, watchStream } from './shared/output.ts';
import type { cliErrorCodes } from './shared/usage-error.ts';

/** The program with all its commands. */
export function createProgram(): Command {
  const program = new Command('pipewright')
    .description('Pipeline-parallel training in TypeScript on libtorch')
    .showHelpAfterError('(add --help for the options)')
    .enablePositionalOptions()
    .version(version(), '-V, --version', 'print the version')
    .configureOutput({ outputError: (text, write) => write(text.replace(/^error: /, 'pipewright: ')) })
    .hook('preAction', (_, command) => checkOutput(command.opts<{ out?: string }>().out))
    .exitOverride();

  registerScheduleCommand(program);
  registerSimulateCommand(program);
  registerCompareCommand(program);
  registerCheckCommand(program);
  registerPlanCommand(program);
  registerRunCommand(program);
  registerInspectCommand(program);
  registerSplitCommand(program);
  registerCheckpointCommand(program);
  registerStudioCommand(program);
  registerDoctorCommand(program);
  registerSetupCommand(program);
  return program;
}

function version(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

/** Runs the command line; errors of ours are a message, not a stack. Exit codes: 0 done, 1 failed, 2 not understood. */
export async function main(argv: readonly string[]): Promise<void> {
  watchStream(process.stdout, 'standard output');
  watchStream(process.stderr, 'standard error');
  try {
    await createProgram().parseAsync(argv);
  } catch (error) {
    if (error instanceof CommanderError) {
      process.exitCode = error.exitCode === 0 ? 0 : 2;
      return;
    }
    process.exitCode = error instanceof Error && 'code' in error ? exitCodeOf(String(error.code)) : 1;
    if (process.env['PIPEWRIGHT_DEBUG']) console.error(error);
    else console.error(`pipewright: ${messageOf(error)}`);
  }
}

/** What to tell of an error: our own in its words; another one is a bug of ours, told as such. */
function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return `internal error: ${String(error)}`;
  if ('code' in error) return inFlagWords(error.message);
  return `internal error: ${error.message}; set PIPEWRIGHT_DEBUG=1 to see where, and please report it`;
}

/** Codes of errors that say the command line, or a file it names, cannot be carried out as written. */
const usageCodes: readonly string[] = [
  'BAD_ACTION',
  'BAD_CSV',
  'BAD_JSON',
  'BAD_OPTION',
  'BAD_PLAN',
  'BAD_SCHEDULE',
  'BAD_SHAPE',
  'NOT_COMPUTE_ONLY',
  'PACKING_RANGE',
  'PT2_FILE',
  'PT2_NO_MODEL',
  'TOO_MANY_STAGES',
  'UNKNOWN_MODULE',
  'UNKNOWN_OPTION',
  'UNKNOWN_SCHEDULE',
  'UNKNOWN_SIZE',
  'UNSUPPORTED',
  'USAGE',
] satisfies (ScheduleErrorCode | PipelineErrorCode | (typeof cliErrorCodes)[number])[];

function exitCodeOf(code: string): 1 | 2 {
  return usageCodes.includes(code) ? 2 : 1;
}
