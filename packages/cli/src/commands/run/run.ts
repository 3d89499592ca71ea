/** @file `pipewright run`: starts the ranks of a script on this machine, or is itself a rank that another launcher started. */
import { constants } from 'node:os';
import { extname } from 'node:path';
import type { Launched, LaunchOptions } from 'pipewright/launch';
import { UsageError } from '../../shared/usage-error.ts';
import { openPlan, type PlanRunFlags, ranksOf } from './plan-check.ts';
import { openWatch, type WatchFlags } from './watch.ts';

/** The flags of the command. */
export interface RunFlags extends WatchFlags, PlanRunFlags {
  readonly ranks?: number;
  readonly threads?: boolean;
  readonly processes?: boolean;
  readonly nnodes?: number;
  readonly nodeRank?: number;
  readonly masterAddr?: string;
  readonly masterPort?: number;
  readonly interface?: string;
  readonly secret?: string;
  readonly secretFile?: string;
  readonly timeout?: number;
  readonly grace?: number;
  readonly cores?: number;
  readonly maxRestarts?: number;
}

/** Runs the command; returns the exit code: 0, that of the first rank that failed, or 128 and the number of the signal. */
export async function run(script: string, args: readonly string[], flags: RunFlags): Promise<number> {
  const { formatRecovery, formatRestart, isRank, LaunchError, launch, runRank } = await import('pipewright/launch');
  const plan = openPlan(flags);
  if (flags.ranks === undefined && plan === null) {
    if (!isRank()) throw new UsageError(whichRanks(script, args));
    await runRank(script, { args });
    return Number(process.exitCode ?? 0);
  }
  const onRestart: LaunchOptions['onRestart'] = (restart) => {
    console.error(`pipewright: ${restart.report}`);
    console.error(`pipewright: ${formatRestart(restart)}`);
  };
  const onRecovery: LaunchOptions['onRecovery'] = (recovery) =>
    console.error(`pipewright: ${formatRecovery(recovery)}`);
  const all = { ...flags, ranks: flags.ranks ?? (plan === null ? 1 : ranksOf(plan)) };
  const options = { ...launchOptions(script, args, all), onRestart, onRecovery };
  const watch = await openWatch(flags, plan);
  const ranks = start(() => launch(options));
  watch?.follow(ranks);
  if (ranks.madeSecret !== undefined)
    console.error(`pipewright: for the other machines: export PIPEWRIGHT_SECRET=${ranks.madeSecret}`);
  const release = passSignals(ranks);
  let failure: unknown = null;
  try {
    await ranks.done;
    return 0;
  } catch (error) {
    failure = error;
    if (error instanceof LaunchError) {
      console.error(`pipewright: ${error.report()}`);
      return error.exitCode;
    }
    const { code, details } = error as { readonly code?: string; readonly details?: { readonly signal?: string } };
    if (code !== 'TERMINATED') throw error;
    console.error(`pipewright: all ranks ended after ${details?.signal}`);
    return 128 + (constants.signals[details?.signal as NodeJS.Signals] ?? 0);
  } finally {
    release();
    await watch?.end(failure);
  }
}

/** What to write where the number of ranks is missing; one that comes after the script belongs to the script. */
function whichRanks(script: string, args: readonly string[]): string {
  const at = args.findIndex((arg) => /^(-n|--ranks)(=|\d|$)/.test(arg));
  if (at < 0) return 'say how many ranks, for example: pipewright run -n 4 train.ts';
  const number = /\d+$/.exec(args[at]!)?.[0] ?? args[at + 1] ?? '4';
  return `--ranks comes before the script, since what follows it is the script's: pipewright run -n ${number} ${script}`;
}

/** Starts; what is wrong with the options is wrong with the command line. */
function start(body: () => Launched): Launched {
  try {
    return body();
  } catch (error) {
    const { code, message } = error as { readonly code?: string; readonly message: string };
    if (code !== 'BAD_OPTION' && code !== 'NO_SCRIPT') throw error;
    throw new UsageError(withFlags(message.replace(/^launch: /, '')));
  }
}

/** Options of `launch` as the flags that set them. */
const flagNames: Readonly<Record<string, string>> = {
  nnodes: '--nnodes',
  nodeRank: '--node-rank',
  masterAddr: '--master-addr',
  masterPort: '--master-port',
  networkInterface: '--interface',
  secretFile: '--secret-file',
  maxRestarts: '--max-restarts',
  threadsPerRank: '--cores',
};

/** A message about options of `launch` in the words of the command line. */
function withFlags(message: string): string {
  return message.replace(/\b\w+\b/g, (word) => (Object.hasOwn(flagNames, word) ? `${flagNames[word]}` : word));
}

function launchOptions(script: string, args: readonly string[], flags: RunFlags): LaunchOptions {
  const ending = extname(script);
  if (ending !== '' && !/^\.[cm]?[jt]sx?$/.test(ending))
    throw new UsageError(`${script} is neither JavaScript nor TypeScript; name a script such as train.ts`);
  if (flags.threads === true && flags.processes === true)
    throw new UsageError('--threads and --processes exclude each other; give one of them');
  const { nnodes = 1, timeout, grace, cores } = flags;
  return {
    ranks: flags.ranks!,
    script,
    args,
    mode: flags.threads === true ? 'threads' : 'processes',
    nnodes,
    networkInterface: flags.interface,
    secret: flags.secret,
    secretFile: flags.secretFile,
    timeoutMs: timeout === undefined ? undefined : timeout * 1000,
    graceMs: grace === undefined ? undefined : Math.round(grace * 1000),
    threadsPerRank: cores,
    maxRestarts: flags.maxRestarts,
    ...(nnodes === 1 ? { masterPort: flags.masterPort, masterAddr: flags.masterAddr } : several(flags)),
    nodeRank: flags.nodeRank ?? (nnodes === 1 ? 0 : nodeRank(process.env)),
  };
}

/** Where machine 0 is, from the flags or from torchrun's variables. */
function several(flags: RunFlags): Pick<LaunchOptions, 'masterAddr' | 'masterPort'> {
  const { MASTER_ADDR, MASTER_PORT } = process.env;
  return {
    masterAddr: flags.masterAddr ?? MASTER_ADDR,
    masterPort: flags.masterPort ?? (MASTER_PORT === undefined ? undefined : Number(MASTER_PORT)),
  };
}

/** The number of this machine, as Slurm, Kubernetes' indexed jobs and others say it. */
function nodeRank(env: NodeJS.ProcessEnv): number | undefined {
  const name = ['NODE_RANK', 'GROUP_RANK', 'SLURM_NODEID', 'JOB_COMPLETION_INDEX'].find(
    (one) => (env[one] ?? '') !== '',
  );
  return name === undefined ? undefined : Number(env[name]);
}

/** Ctrl-C and its like reach the ranks through us: the first one asks, the second one kills. Ctrl-Z stops them too. */
function passSignals(ranks: Launched): () => void {
  const end = (signal: NodeJS.Signals): void => ranks.end(signal);
  const stop = (): void => {
    ranks.pause(true);
    process.kill(process.pid, 'SIGSTOP');
  };
  const go = (): void => ranks.pause(false);
  const handlers: readonly [NodeJS.Signals, (signal: NodeJS.Signals) => void][] = [
    ['SIGINT', end],
    ['SIGTERM', end],
    ['SIGHUP', end],
    ['SIGTSTP', stop],
    ['SIGCONT', go],
  ];
  for (const [signal, handler] of handlers) process.on(signal, handler);
  return () => {
    for (const [signal, handler] of handlers) process.off(signal, handler);
  };
}
