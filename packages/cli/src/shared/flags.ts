/** @file The flags that several commands share. */
import type { PerStage } from '@pipewright/schedule';
import { type Command, InvalidArgumentError, Option } from 'commander';

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

/** Adds the flags of a schedule's shape. */
export function addShapeFlags(command: Command): Command {
  return command
    .option('-p, --ranks <n>', 'number of ranks', count)
    .option(
      '-s, --stages-per-rank <n>',
      'stages on each rank (default: 1, or 2 for schedules that need several)',
      count,
    )
    .option('-m, --microbatches <n>', 'number of microbatches', count)
    .addOption(
      new Option('--stages <n>').hideHelp().argParser(() => {
        throw new InvalidArgumentError('There is no --stages here; give --stages-per-rank.');
      }),
    )
    .addOption(new Option('--compat <system>', "exactly that system's order, its bugs included").choices(['torch']))
    .option(
      '--memory-limit <amount>',
      'activation memory per rank, without parameters, in the unit of --activation: one number, or one per rank: 4,4,3,3; ZB1P, ZB2P and AdaptiveV search for an order that keeps to it',
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

/** Adds where the result goes, colours and the width. */
export function addOutputFlags(command: Command): Command {
  return addColorFlags(addOutFlag(command)).option(
    '--width <n>',
    'characters per line, or pixels of an SVG picture',
    count,
  );
}

/** Adds where the result goes. */
export function addOutFlag(command: Command): Command {
  return command.option('-o, --out <file>', 'write to a file instead of standard output');
}

/** Adds whether to colour. */
export function addColorFlags(command: Command): Command {
  return command
    .option('--color', 'use colours even if the output is not a terminal')
    .option('--no-color', 'do not use colours');
}

/** Adds the sizes of dynamic dimensions; `matters` says what they are for. */
export function addSizeFlag(command: Command, matters: string): Command {
  return command.option(
    '--size <name=n...>',
    `sizes of dynamic dimensions, for ${matters}: --size s0=8 s1=128`,
    (text: string, earlier: Readonly<Record<string, number>> | undefined) => ({ ...earlier, ...size(text) }),
  );
}

/** A whole number of at least 1. */
export function count(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text.trim()) || !Number.isSafeInteger(value) || value < 1)
    throw new InvalidArgumentError('It must be a whole number of at least 1.');
  return value;
}

/** A port to listen on. */
export function port(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text.trim()) || value < 1 || value > 65_535)
    throw new InvalidArgumentError('It must be a whole number from 1 to 65535.');
  return value;
}

/** A number of at least 0, or several with commas. */
export function numbers(text: string): number | number[] {
  const values = text.split(',').map((piece) => (piece.trim() === '' ? Number.NaN : Number(piece)));
  if (values.some((value) => !Number.isFinite(value) || value < 0))
    throw new InvalidArgumentError('It must be a number of at least 0, or several with commas.');
  return values.length === 1 ? values[0]! : values;
}

const byteUnits: Readonly<Record<string, number>> = {
  '': 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  KIB: 2 ** 10,
  MIB: 2 ** 20,
  GIB: 2 ** 30,
};

/** The number of bytes; null where the text says none. @example bytesOf('20GB') // 20e9 */
export function bytesOf(text: string): number | null {
  const [, digits, unit] = /^\s*([\d.]+(?:e\d+)?)\s*([KMG]i?B)?\s*$/i.exec(text) ?? [];
  const value = Number(digits) * (byteUnits[(unit ?? '').toUpperCase()] ?? Number.NaN);
  return value > 0 ? value : null;
}

/** `s0=8` as a name and a number. */
function size(text: string): Record<string, number> {
  const match = /^(\w+)=(\d+)$/.exec(text);
  if (match === null) throw new InvalidArgumentError('Write a name and a number, as in --size s0=8.');
  return { [match[1]!]: Number(match[2]) };
}
