/** @file The options of the command line. */

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import {
  buildSchedule,
  findSchedule,
  type PipelinePlan,
  planSchedule,
  readPlan,
  type Schedule,
} from '@pipewright/schedule';
import { checkWritable } from '@pipewright/torch/files';
import { hasCheckpoint } from 'pipewright';

/** Blocks, heads and width of the model. */
const sizes: Record<string, readonly [layers: number, heads: number, width: number]> = {
  tiny: [4, 2, 64],
  small: [4, 4, 128],
  medium: [8, 8, 256],
  gpt2: [12, 12, 768],
};

const help = `npm start -- [options]      trains a small GPT over pipeline stages

  --schedule NAME    1F1B (default), GPipe, Interleaved1F1B, ZBVZeroBubble, DualPipeV, …
  --ranks N          threads that train side by side; default 4
  --stages N         parts of the model; default: as many as the schedule needs (one or two per rank)
  --microbatches N   parts of a batch; default 8
  --size NAME        ${Object.keys(sizes).join(', ')}; default small
  --steps N          default 300
  --batch N          rows of a batch; default 16
  --context N        characters of a row; default 64
  --lr X             default 4e-3
  --seed N           default 1
  --sample N         characters to write at the end; default 300
  --device NAME      cpu (default) or cuda
  --trace PATH       where the trace goes; default trace.json
  --plan FILE        as pipewright plan has planned it: schedule, ranks, stages, microbatches and where the model is cut
  --save-every N     saves a checkpoint after every N steps; default: never
  --checkpoints PATH the folder of checkpoints; default checkpoints
  --resume           goes on with the latest checkpoint, in the same layout or another one`;

const defaults = {
  ranks: 4,
  stages: 0,
  microbatches: 8,
  steps: 300,
  batch: 16,
  context: 64,
  lr: 4e-3,
  seed: 1,
  sample: 300,
  'save-every': 0,
};
const words = {
  schedule: '1F1B',
  size: 'small',
  device: 'cpu',
  trace: 'trace.json',
  plan: '',
  checkpoints: 'checkpoints',
};

/** The options of a run; plain data, because every rank gets a copy. */
export type Options = typeof defaults &
  typeof words & {
    layers: number;
    heads: number;
    width: number;
    live: boolean;
    resume: boolean;
    planned: PipelinePlan | null;
  };

/** Reads the command line; if something is wrong with it, says so and exits. */
export function readOptions(args: readonly string[] = process.argv.slice(2)): Options {
  if (args.includes('--help') || args.includes('-h')) {
    console.log(help);
    process.exit(0);
  }
  try {
    return parseOptions(args);
  } catch (error) {
    console.error(`pipewright: ${error instanceof Error ? error.message : String(error)}\n(--help lists the options)`);
    process.exit(2);
  }
}

/** The options in command-line arguments. */
export function parseOptions(args: readonly string[]): Options {
  const names = [...Object.keys(defaults), ...Object.keys(words)];
  const strings = Object.fromEntries(names.map((name) => [name, { type: 'string' as const }]));
  const known = { ...strings, resume: { type: 'boolean' as const, default: false } };
  const given = { ...defaults, ...words, resume: false };
  for (const [name, value] of Object.entries(parseArgs({ args: [...args], options: known }).values)) {
    if (isKey(defaults, name)) given[name] = numberOf(name, String(value));
    else if (isKey(words, name)) given[name] = String(value);
    else given.resume = value === true;
  }
  const options = { ...given, ...fromPlan(given) };
  const size = sizes[options.size];
  if (size === undefined) throw new Error(`--size is ${options.size}; give ${Object.keys(sizes).join(', ')}`);
  if (options.batch < options.microbatches)
    throw new Error(`--batch is ${options.batch}; ${options.microbatches} microbatches need as many rows or more`);
  if (options.planned === null && !findSchedule(options.schedule).hasBackward)
    throw new Error(`--schedule ${options.schedule} has no backward`);
  checkWritable(options.trace); // now, not after an hour of training
  if (options.resume && !hasCheckpoint(options.checkpoints))
    throw new Error(`--resume: there is no checkpoint in ${options.checkpoints}; --save-every makes some`);
  const { stages } = scheduleOf(options);
  const [layers, heads, width] = size;
  return { ...options, stages, layers: Math.max(layers, stages), heads, width, live: process.stdout.isTTY };
}

function isKey<T extends object>(object: T, name: PropertyKey): name is keyof T {
  return Object.hasOwn(object, name);
}

/** The number that an option was given. */
function numberOf(name: keyof typeof defaults, text: string): number {
  const value = Number(text);
  if (value === defaults[name] || (value > 0 && (name === 'lr' || Number.isInteger(value)))) return value;
  throw new Error(`--${name} is ${text}; give a ${name === 'lr' ? '' : 'whole '}number above 0`);
}

/** What a plan says about a run; nothing without one. */
function fromPlan({ plan, batch }: typeof words & typeof defaults): Partial<Options> & Pick<Options, 'planned'> {
  if (plan === '') return { planned: null };
  const planned = readPlan(readFileSync(plan, 'utf8'));
  const { schedule, ranks, stages, microbatches, rows, dataParallel } = planned;
  if ((dataParallel?.replicas ?? 1) > 1)
    throw new Error(
      `--plan ${plan} has ${dataParallel?.replicas} pipelines beside each other, and this example trains one; plan with --dp 1`,
    );
  if (batch !== microbatches * rows)
    throw new Error(`--batch is ${batch}; the plan is for ${microbatches * rows} rows`);
  return { planned, schedule, ranks, stages, microbatches };
}

/** The schedule of a run. */
export function scheduleOf(
  options: Pick<Options, 'planned' | 'schedule' | 'ranks' | 'stages' | 'microbatches'>,
): Schedule {
  const { planned, schedule, ranks, stages, microbatches } = options;
  if (planned !== null) return planSchedule(planned);
  return buildSchedule(schedule, { ranks, microbatches, ...(stages === 0 ? {} : { stages }) });
}
