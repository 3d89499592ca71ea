/** @file The flags that several commands share, and how their values are read. */

import type { Costs, PerStage } from '@pipewright/schedule';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { readText } from './source.ts';
import { UsageError } from './usage-error.ts';

/** The flags of `addCostFlags`. */
export interface CostFlags {
  readonly F?: PerStage;
  readonly I?: PerStage;
  readonly W?: PerStage;
  readonly B?: PerStage;
  readonly comm?: PerStage;
  readonly overlap?: PerStage;
  readonly activation?: PerStage;
  readonly retained?: PerStage;
  readonly weightGradient?: PerStage;
  readonly parameters?: PerStage;
  readonly costs?: string;
}

const costFlags = [
  'F',
  'I',
  'W',
  'B',
  'comm',
  'overlap',
  'activation',
  'retained',
  'weightGradient',
  'parameters',
] as const;

/** Adds the flags of a schedule's shape. */
export function addShapeFlags(command: Command): Command {
  return command
    .option('-p, --ranks <n>', 'number of ranks', count)
    .option(
      '-s, --stages-per-rank <n>',
      'stages on each rank (default: 1, or 2 where a schedule is made for several)',
      count,
    )
    .option('-m, --microbatches <n>', 'number of microbatches', count)
    .addOption(new Option('--compat <system>', "exactly that system's order, its faults included").choices(['torch']))
    .option(
      '--memory-limit <amount>',
      'activation memory per rank, for schedules that search (one number, or one per rank: 4,4,3,3)',
      numbers,
    );
}

/** Adds the flags that say what actions cost. */
export function addCostFlags(command: Command): Command {
  return command
    .option('--F <time>', 'forward (default 1); a number, or one per stage: 1,1,2,1', numbers)
    .option('--I <time>', 'input half of the backward (default 1)', numbers)
    .option('--W <time>', 'weight half of the backward (default 1)', numbers)
    .option('--B <time>', 'full backward (default I + W)', numbers)
    .option('--comm <time>', 'a message between ranks (default 0)', numbers)
    .option('--overlap <time>', 'an overlapped pair (default: the sum of its parts)', numbers)
    .option('--activation <amount>', 'memory of a microbatch on a stage (default 1)', numbers)
    .option('--retained <share>', 'share of it kept from I until W (default 0.5)', numbers)
    .option('--weight-gradient <amount>', "memory of a stage's weight gradient (default 0)", numbers)
    .option('--parameters <amount>', "memory of a stage's parameters (default 0)", numbers)
    .option(
      '--costs <file>',
      'costs as JSON, with everything the simulator knows: { "F": 1, "comm": { "bytes": 1e6, "bandwidth": 1e9 } }',
    );
}

/** Adds where the result goes. */
export function addOutputFlags(command: Command): Command {
  return command
    .option('-o, --out <file>', 'write to a file instead of standard output')
    .option('--color', 'colours even if the output is no terminal')
    .option('--no-color', 'no colours')
    .option('--width <n>', 'characters per line, or pixels of an SVG picture', count);
}

/** Costs from a file, with single flags taking precedence; undefined if none was given. */
export function readCosts(flags: CostFlags): Costs | undefined {
  const given: Record<string, unknown> = {};
  for (const name of costFlags) if (flags[name] !== undefined) given[name] = flags[name];
  if (flags.costs === undefined) return Object.keys(given).length === 0 ? undefined : (given as Costs);
  const text = readText(flags.costs);
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new UsageError(
      `--costs ${flags.costs} is not JSON (${(error as Error).message}); write for example { "F": 1, "I": 1, "W": 1, "comm": 0.1 }`,
    );
  }
  if (typeof file !== 'object' || file === null || Array.isArray(file)) {
    throw new UsageError(`--costs ${flags.costs} must hold an object such as { "F": 1, "I": 1, "W": 1, "comm": 0.1 }`);
  }
  return { ...file, ...given } as Costs;
}

/** A whole number of at least 1. */
export function count(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text.trim()) || !Number.isSafeInteger(value) || value < 1)
    throw new InvalidArgumentError('It must be a whole number of at least 1.');
  return value;
}

/** A number of at least 0, or several with commas. */
export function numbers(text: string): number | number[] {
  const values = text.split(',').map((piece) => (piece.trim() === '' ? Number.NaN : Number(piece)));
  if (values.some((value) => !Number.isFinite(value) || value < 0))
    throw new InvalidArgumentError('It must be a number of at least 0, or several with commas.');
  return values.length === 1 ? values[0]! : values;
}
