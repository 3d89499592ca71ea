/** @file Registers `pipewright plan`. */
import { type Command, InvalidArgumentError } from 'commander';
import { addColorFlags, addSizeFlag, bytesOf, count } from '../../shared/flags.ts';
import type { PlanFlags } from './run.ts';

/** Adds the command to the program. */
export function registerPlanCommand(program: Command): void {
  const command = program
    .command('plan <model>')
    .description(
      'find the best pipeline for a model on this machine or another one: measures layers and links, searches splits, schedules, microbatches, recomputation, replicas and shards under memory limits, and writes plan.json',
    )
    .requiredOption('-n, --ranks <n>', 'ranks to plan for; they need not exist', count)
    .requiredOption('-b, --batch <rows>', 'rows of a whole batch', count)
    .option('--rows <n...>', 'sizes of microbatches to try (default: 1, 2, 4 ... rows that divide the batch)', counts)
    .option('--memory <bytes>', 'memory of each rank, such as 20GB or one per rank: 20GB,20GB,8GB', amounts)
    .option(
      '--machine <file>',
      'the machine as JSON: { "memory": ["8GB", "4GB"], "slowness": [1, 1.5], "bandwidth": 1e10, "latency": 1e-5 }',
    )
    .option('--schedules <name...>', 'schedules to try (default: all)')
    .option(
      '--dp <n...>',
      'data-parallel replicas to try, or all: every number that divides the ranks (default 1, which every program can run; the best of the others is named)',
      degrees,
    )
    .option(
      '--shards <level...>',
      'what they may divide: replicate (nothing), optimizer, gradients, parameters (default: all)',
    )
    .option('--no-recompute', 'disable recomputation (activation checkpointing)')
    .option('--state-factor <n>', 'total training state as a multiple of the parameter bytes (default 4, Adam)', factor)
    .option('--cores <n>', 'cores of each rank while measuring (default: a fair share)', count)
    .option('--rounds <n>', 'number of measurement rounds (default 7)', count)
    .option('--inputs <file>', 'an example batch of a .pt2 model, as safetensors, in the order of its inputs')
    .option('--fast', 'predict from layers only, without measuring the stages of the best plans')
    .option('--no-cache', 'ignore cached measurements')
    .option('--top <n>', 'plans to show (default 5)', count)
    .option('--picture <file>', 'write the step of the best plan as SVG')
    .option('-o, --out <file>', 'where the best plan goes (default plan.json)')
    .option('--model <name>', 'which model of a .pt2 file (default: the one called model, or the only one)')
    .addHelpText(
      'after',
      `
The model is a .pt2 file, or a JavaScript or TypeScript module that exports
  model     an nn.Module, or a function that returns one
  batch     a function from rows to { args, target }
  lossFn    the loss of a microbatch, of what the model returns and the target

Examples:
  pipewright plan model.ts --ranks 4 --batch 32 --memory 8GB
  pipewright plan llama.pt2 --ranks 8 --batch 64 --machine cluster.json --out cluster-plan.json
  pipewright plan model.ts --ranks 4 --batch 32 --dp all     also several pipelines, for programs that call planStages
  pipewright run --plan plan.json train.ts                   runs it, and compares it with the prediction
`,
    );
  addColorFlags(addSizeFlag(command, 'the example batch')).action(async (file: string, flags: PlanFlags) => {
    const { plan } = await import('./run.ts');
    process.exitCode = await plan(file, flags);
  });
}

function counts(text: string, earlier: readonly number[] = []): number[] {
  return [...earlier, ...text.split(',').map(count)];
}

/** A multiple of the parameters. */
function factor(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value) || value < 0)
    throw new InvalidArgumentError('It must be a number of at least 0.');
  return value;
}

/** Numbers of pipelines, or `all`. */
function degrees(text: string, earlier: readonly number[] | 'all' = []): number[] | 'all' {
  return text === 'all' || earlier === 'all' ? 'all' : counts(text, earlier);
}

/** `20GB`, or several with commas. */
function amounts(text: string): number | number[] {
  const values = text.split(',').map((piece) => {
    const value = bytesOf(piece);
    if (value === null)
      throw new InvalidArgumentError('Write bytes, such as 8e9, 20GB or 16GiB, or one per rank with commas.');
    return value;
  });
  return values.length === 1 ? values[0]! : values;
}
