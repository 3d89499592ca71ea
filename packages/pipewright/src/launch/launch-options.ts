/** @file The options of `launch`, and their checks. */
import { availableParallelism } from 'node:os';
import { checkArgument, checkChoice, checkCount, checkOptions, show } from '../base/checks.ts';
import { PipelineError } from '../base/errors.ts';
import { checkInterface } from './machines/address.ts';
import { checkSecret } from './machines/secret.ts';
import { checkPlain } from './ranks/plain-data.ts';
import type { LineSink } from './ranks/rank-output.ts';
import { scriptOfRank } from './ranks/run-script.ts';
import { scriptUrl } from './ranks/script-url.ts';
import type { Recovery } from './replacement/recovery.ts';
import type { Restart } from './restart.ts';

/** How to start ranks. */
export interface LaunchOptions {
  /** How many ranks on this machine. */
  readonly ranks: number;
  /** What each rank runs: a path, or a URL such as `new URL('./train.ts', import.meta.url)`. JavaScript or TypeScript. */
  readonly script: string | URL;
  /** `processes` (default), or `threads` of this process, between which tensors change hands without a copy. */
  readonly mode?: 'processes' | 'threads' | undefined;
  /** The arguments of the script, in `process.argv`. */
  readonly args?: readonly string[] | undefined;
  /** The argument of the script's exported `main`; it is copied to every rank. */
  readonly data?: unknown;
  /** More environment variables for the ranks. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** How many machines take part, each with its own launcher. Default 1. */
  readonly nnodes?: number | undefined;
  /** Which of them this is; the one with number 0 has rank 0. */
  readonly nodeRank?: number | undefined;
  /** Where machine 0 can be reached. Default 127.0.0.1, where there is one machine. */
  readonly masterAddr?: string | undefined;
  /** The port on which rank 0 is found; several machines also use the next one. Default: a free one, or 29500. */
  readonly masterPort?: number | undefined;
  /** The network interface for ranks and launchers, such as `eth0`. Default: GLOO_SOCKET_IFNAME, or the one towards machine 0. */
  readonly networkInterface?: string | undefined;
  /** A secret that the machines of this run share, at least 16 characters. Default: PIPEWRIGHT_SECRET, or one that machine 0 makes. */
  readonly secret?: string | undefined;
  /** A file with the secret that only the machines of this run can read; machine 0 writes it if there is none. */
  readonly secretFile?: string | undefined;
  /** The time limit of every wait without one of its own. Default 5 minutes. */
  readonly timeoutMs?: number | undefined;
  /** How long ranks may take to end after one has failed, before they are ended. Default 2 seconds. */
  readonly graceMs?: number | undefined;
  /**
   * How often ranks are started again after a failure: the lost one alone where the script trains with `trainLoop`, else all; they
   * find in TORCHELASTIC_RESTART_COUNT how often any were. Default 0.
   */
  readonly maxRestarts?: number | undefined;
  /** Called before ranks are started again. */
  readonly onRestart?: ((restart: Restart) => void) | undefined;
  /** Called when a lost rank was replaced and the step was repeated. */
  readonly onRecovery?: ((recovery: Recovery) => void) | undefined;
  /** Cores for the operators of each rank. Default: PIPEWRIGHT_THREADS, or the cores divided by the ranks. */
  readonly threadsPerRank?: number | undefined;
  /** Takes each line that a rank prints. Default: it is printed with `[rank 2] ` in front. */
  readonly onLine?: LineSink | undefined;
}

/** The same, checked and complete. */
export interface LaunchPlan {
  readonly ranks: number;
  readonly script: string;
  readonly mode: 'processes' | 'threads';
  readonly args: readonly string[];
  readonly data: unknown;
  readonly env: Readonly<Record<string, string>>;
  readonly nnodes: number;
  readonly nodeRank: number;
  readonly masterAddr: string;
  readonly masterPort: number | undefined;
  readonly networkInterface: string | undefined;
  readonly secret: string | undefined;
  readonly secretFile: string | undefined;
  readonly timeoutMs: number | undefined;
  readonly graceMs: number;
  readonly maxRestarts: number;
  readonly threadsPerRank: number;
}

const known = [
  ...['ranks', 'script', 'mode', 'args', 'data', 'env', 'nnodes', 'nodeRank', 'masterAddr', 'masterPort'],
  ...[
    'networkInterface',
    'secret',
    'secretFile',
    'timeoutMs',
    'graceMs',
    'maxRestarts',
    'onRestart',
    'onRecovery',
    'threadsPerRank',
    'onLine',
  ],
];

/** Checks options and completes them. */
export function planLaunch(options: LaunchOptions): LaunchPlan {
  const where = 'launch';
  checkArgument(where, typeof options === 'object' && options !== null, ['the argument', options], '{ ranks, script }');
  checkOptions(where, options, known);
  const ranks = checkCount(where, 'ranks', options.ranks);
  const mode = checkChoice(where, 'mode', options.mode ?? 'processes', ['processes', 'threads']);
  const nnodes = checkCount(where, 'nnodes', options.nnodes ?? 1);
  const { nodeRank, masterAddr, masterPort, timeoutMs } = options;
  if (nnodes > 1) {
    if (mode === 'threads') throw bad('threads are of one machine; use processes where nnodes is more than 1');
    if (nodeRank === undefined) throw bad(`nodeRank is missing; with ${nnodes} machines, give 0 to ${nnodes - 1}`);
    if (masterAddr === undefined)
      throw bad('masterAddr is missing; give the address of machine 0, the same everywhere');
  }
  checkCount(where, 'nodeRank', nodeRank ?? 0, 0);
  if ((nodeRank ?? 0) >= nnodes)
    throw bad(`nodeRank is ${nodeRank}; with nnodes ${nnodes} it is from 0 to ${nnodes - 1}`);
  if (masterAddr !== undefined && (typeof masterAddr !== 'string' || masterAddr === ''))
    throw bad(`masterAddr is ${show(masterAddr)}; give a name or an address`);
  if (masterPort !== undefined && !(Number.isInteger(masterPort) && masterPort > 0 && masterPort < 65535))
    throw bad(`masterPort is ${show(masterPort)}; give a whole number from 1 to 65534`);
  if (timeoutMs !== undefined && !(typeof timeoutMs === 'number' && timeoutMs > 0))
    throw bad(`timeoutMs is ${show(timeoutMs)}; give milliseconds, more than 0`);
  return {
    ranks,
    script: checkNested(where, scriptUrl(where, options.script)),
    mode,
    args: options.args ?? [],
    data: checkData(options.data),
    env: options.env ?? {},
    nnodes,
    nodeRank: nodeRank ?? 0,
    masterAddr: masterAddr ?? '127.0.0.1',
    masterPort: masterPort ?? (nnodes > 1 ? 29_500 : undefined),
    networkInterface: interfaceOf(options.networkInterface),
    ...secretOf(options, nnodes),
    timeoutMs,
    graceMs: checkCount(where, 'graceMs', options.graceMs ?? 2000, 0),
    maxRestarts: checkCount(where, 'maxRestarts', options.maxRestarts ?? 0, 0),
    threadsPerRank: checkCount(where, 'threadsPerRank', options.threadsPerRank ?? share(ranks)),
  };
}

function checkText(name: string, value: unknown, what: string): string | undefined {
  if (value === undefined || (typeof value === 'string' && value !== '')) return value;
  throw bad(`${name} is ${show(value)}; give ${what}`);
}

/** The interface that is asked for, which this machine must have. */
function interfaceOf(given: unknown): string | undefined {
  const name = checkText('networkInterface', given, 'the name of an interface, such as eth0');
  if (name !== undefined) checkInterface(name);
  return name;
}

/** One machine needs no secret from the user: its ranks get one that is made here. */
function secretOf(options: LaunchOptions, nnodes: number): Pick<LaunchPlan, 'secret' | 'secretFile'> {
  const secretFile = checkText('secretFile', options.secretFile, 'the path of a file');
  if (options.secret !== undefined && secretFile !== undefined) throw bad('give secret or secretFile, not both');
  const given =
    options.secret ?? (secretFile === undefined ? process.env['PIPEWRIGHT_SECRET'] || undefined : undefined);
  const secret = given === undefined || (nnodes === 1 && options.secret === undefined) ? undefined : checkSecret(given);
  if (nnodes > 1 && options.nodeRank !== 0 && secret === undefined && secretFile === undefined)
    throw bad('the secret is missing; give that of machine 0 by secret, secretFile or the variable PIPEWRIGHT_SECRET');
  return { secret, secretFile };
}

/** The cores of one rank: as the user has set, or an equal share. */
function share(ranks: number): number {
  const asked = Number(process.env['PIPEWRIGHT_THREADS'] || Number.NaN);
  return Number.isNaN(asked) ? Math.max(1, Math.floor(availableParallelism() / ranks)) : asked;
}

function bad(what: string): PipelineError {
  return new PipelineError('BAD_OPTION', `launch: ${what}`);
}

/** Refuses a script that is started by one of its own ranks: each rank would start ranks in its turn, without end. */
function checkNested(where: string, script: string): string {
  if (script !== scriptOfRank()) return script;
  throw new PipelineError(
    'BAD_OPTION',
    `${where}: this is a rank of ${script} already, and would start it again, as would each of its ranks; launch only where isRank() is false, which holds for processes and threads, or from another file`,
    { option: 'script', value: script },
  );
}

function checkData(data: unknown): unknown {
  checkPlain('launch: data', data);
  return data;
}
