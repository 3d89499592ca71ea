/** @file Registers `run`. */
import { type Command, InvalidArgumentError } from 'commander';
import { count } from '../../shared/flags.ts';
import type { RunFlags } from './run.ts';

/** Adds `run`. */
export function registerRunCommand(program: Command): void {
  program
    .command('run')
    .description('start a script on several ranks; when one fails, all end and the first cause is reported')
    .argument('<script>', 'JavaScript or TypeScript; if it exports a function main, that is called')
    .argument('[args...]', "the script's own arguments")
    .option(
      '-n, --ranks <n>',
      'ranks on this machine; without it, run as one rank started by torchrun, srun or mpirun',
      count,
    )
    .option('--processes', 'a process for each rank (default)')
    .option('--threads', 'a thread for each rank: starts faster, tensors are passed without copying')
    .option('--nnodes <n>', 'machines that take part, each with a `pipewright run` of its own', count)
    .option('--node-rank <i>', 'which of them this is, from 0 (default: as Slurm or Kubernetes says)', index)
    .option('--master-addr <host>', 'address of machine 0 (default: MASTER_ADDR)')
    .option(
      '--master-port <port>',
      'port of rank 0; machines also use the next one (default: a free one, or 29500)',
      count,
    )
    .option('--interface <name>', 'network interface of ranks and launchers (default: the one towards machine 0)')
    .option(
      '--secret <text>',
      'shared secret of the machines in this run (default: PIPEWRIGHT_SECRET; machine 0 makes one); others can see it in a list of processes',
    )
    .option('--secret-file <file>', 'a file with the secret that all machines can read; machine 0 makes it')
    .option('--timeout <seconds>', 'time limit of every wait for another rank (default 300)', seconds)
    .option('--grace <seconds>', 'how long ranks may take to end after a failure or Ctrl-C (default 2)', seconds)
    .option(
      '--max-restarts <n>',
      'how often ranks are started again after a failure: the lost one alone in a trainLoop, else all (default 0)',
      index,
    )
    .option('--cores <n>', 'cores for the operators of each rank (default: a fair share)', count)
    .option(
      '--plan <file>',
      'a plan of `pipewright plan`: scripts find it with givenPlan(), and the run is compared with it',
    )
    .option('--refit <file>', 'write the plan with the costs that the run has shown')
    .option('--studio', 'serve a page that shows the run while it goes on; its address is printed')
    .option('--live <folder>', 'write what the page needs into a folder; `pipewright studio <folder>` shows it')
    .passThroughOptions()
    .addHelpText(
      'after',
      `
Examples:
  pipewright run -n 4 train.ts --lr 0.1                      4 processes; --lr is the script's
  pipewright run -n 4 --threads train.ts                     4 threads of one process
  pipewright run -n 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --secret-file ~/run1.secret train.ts
                                                             2 ranks on each of 2 machines
  pipewright run --plan plan.json --threads train.ts         follow the plan and report the prediction error
  torchrun --nproc-per-node 4 --no-python npx pipewright run train.ts
  srun --ntasks 8 npx pipewright run train.ts                under other launchers
`,
    )
    .action(async (script: string, args: string[], flags: RunFlags) => {
      const { run } = await import('./run.ts');
      process.exitCode = await run(script, args, flags);
    });
}

/** A whole number of at least 0. */
function index(text: string): number {
  if (!/^\d+$/.test(text.trim())) throw new InvalidArgumentError('It must be a whole number of at least 0.');
  return Number(text);
}

/** A number of seconds. */
function seconds(text: string): number {
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (!(value > 0 && value < 1e9)) throw new InvalidArgumentError('It must be a number of seconds, more than 0.');
  return value;
}
