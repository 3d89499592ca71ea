/** @file The default group: who am I, who else is there. Names as in torch.distributed. */
import { checkGiven } from '../base/checks.ts';
import { checkOptions, TorchError } from '../base/errors.ts';
import { checkTimeout, type Store, tcpStore } from './base/store.ts';
import { type RankVariable, rankEnvironment } from './environment.ts';
import { checkGroup, glooGroup, hasNccl, mixedGroup, ncclGroup, threadGroup } from './group/make-group.ts';
import type { Backend, NewGroupOptions, ProcessGroup } from './group/process-group.ts';
import { addressOf, isLoopback, loopbackInterface } from './network.ts';

/** How to join. What is not given comes from the environment, as torchrun and `spawnThreads` set it. */
export interface InitOptions {
  /**
   * Default: `thread` in a thread started by `spawnThreads`; else, where there are GPUs and NCCL, `cpu:gloo,cuda:nccl`, which
   * uses each for the tensors it is for; else `gloo`.
   */
  readonly backend?: Backend | undefined;
  /** RANK */
  readonly rank?: number | undefined;
  /** WORLD_SIZE */
  readonly worldSize?: number | undefined;
  /** A store that all ranks share, instead of a TCP store at MASTER_ADDR and MASTER_PORT. */
  readonly store?: Store | undefined;
  /** MASTER_ADDR */
  readonly masterAddr?: string | undefined;
  /** MASTER_PORT */
  readonly masterPort?: number | undefined;
  /** The group's name, for messages and `abortGroup`. */
  readonly name?: string | undefined;
  /** The time limit of waits that give none. Default: PIPEWRIGHT_TIMEOUT_MS, or 5 minutes. */
  readonly timeoutMs?: number | undefined;
  /** The network interface that gloo and rank 0's store use; GLOO_SOCKET_IFNAME otherwise, or that of a loopback address. */
  readonly networkInterface?: string | undefined;
  /** What all ranks of this run know and nobody else: PIPEWRIGHT_SECRET. Without one, whoever reaches rank 0's store can use it. */
  readonly secret?: string | undefined;
}

let world: ProcessGroup | undefined;
let worldStore: Store | undefined;

const known = [
  'backend',
  'rank',
  'worldSize',
  'store',
  'masterAddr',
  'masterPort',
  'name',
  'timeoutMs',
  'networkInterface',
  'secret',
];

/**
 * Joins the default group of this thread and returns it.
 *
 * @example const group = initProcessGroup({ backend: 'gloo' }) // under torchrun, or with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 */
export function initProcessGroup(options: InitOptions = {}): ProcessGroup {
  checkOptions('initProcessGroup', options, known);
  if (world !== undefined) {
    throw new TorchError(
      'ALREADY_INITIALIZED',
      `initProcessGroup: the default group is '${world.name}' already; call destroyProcessGroup() first`,
    );
  }
  const threads = process.env['PIPEWRIGHT_THREAD_GROUP'];
  const backend = options.backend ?? (threads !== undefined ? 'thread' : hasNccl() ? 'cpu:gloo,cuda:nccl' : 'gloo');
  const rank = options.rank ?? fromEnvironment('RANK', 'rank');
  const size = options.worldSize ?? fromEnvironment('WORLD_SIZE', 'worldSize');
  const timeoutMs = checkTimeout('initProcessGroup', options.timeoutMs ?? limitFromEnvironment());
  if (backend === 'thread') {
    const name = options.name ?? threads;
    if (name === undefined)
      throw new TorchError(
        'BAD_ARGUMENT',
        'initProcessGroup: give the name of the thread group, or start the threads with spawnThreads',
      );
    world = threadGroup({ name, rank, size, timeoutMs });
  } else if (backend === 'gloo' || backend === 'nccl' || backend === 'cpu:gloo,cuda:nccl') {
    const group = checkGroup('initProcessGroup', { name: options.name, rank, size, timeoutMs });
    const networkInterface = options.networkInterface ?? interfaceFromEnvironment(options);
    world = joining(() => {
      const stores = rendezvous(options, { networkInterface, ...group });
      const parts = { ...group, networkInterface };
      if (backend === 'gloo') return glooGroup(stores.cpu, parts);
      return backend === 'nccl' ? ncclGroup(stores.cuda, parts) : mixedGroup(stores, parts);
    });
  } else {
    throw new TorchError(
      'BAD_ARGUMENT',
      `initProcessGroup: backend is ${String(backend)}; give 'gloo', 'nccl', 'cpu:gloo,cuda:nccl' or 'thread'`,
    );
  }
  shareEnd();
  return world;
}

/** Whoever started this rank, with whatever copy of this package, can end its group in good order. */
function shareEnd(): void {
  (globalThis as Record<symbol, unknown>)[Symbol.for('pipewright.destroyProcessGroup')] = destroyProcessGroup;
}

/** Whether this thread has joined its default group. */
export function isInitialized(): boolean {
  return world !== undefined;
}

/** The default group; an error before `initProcessGroup`. */
export function getDefaultGroup(): ProcessGroup {
  if (world !== undefined) return world;
  throw new TorchError('NOT_INITIALIZED', 'there is no default group yet; call initProcessGroup() first');
}

/** The rank of this thread in a group, the default one where none is given. */
export function getRank(group?: ProcessGroup): number {
  return (group ?? getDefaultGroup()).rank;
}

/** The number of ranks of a group, the default one where none is given. */
export function getWorldSize(group?: ProcessGroup): number {
  return (group ?? getDefaultGroup()).size;
}

/** The backend of a group, the default one where none is given. */
export function getBackend(group?: ProcessGroup): Backend {
  return (group ?? getDefaultGroup()).backend;
}

/** The rank among those of this machine: LOCAL_RANK, or the rank where that is not set. */
export function getLocalRank(): number {
  return rankEnvironment().LOCAL_RANK === undefined ? getRank() : fromEnvironment('LOCAL_RANK', 'rank');
}

/** A group of some ranks of the default one. All ranks must call it, in the same order; those not in it get null. */
export function newGroup(ranks: readonly number[], options?: NewGroupOptions): ProcessGroup | null {
  return getDefaultGroup().newGroup(ranks, options);
}

/** Leaves a group, the default one where none is given. Doing it twice does nothing. */
export function destroyProcessGroup(group: ProcessGroup | undefined = world): void {
  if (group === undefined) return;
  checkGiven(
    'destroyProcessGroup',
    typeof (group as ProcessGroup | null)?.close === 'function',
    ['its argument', group],
    'a process group',
  );
  const isWorld = group === world;
  if (isWorld) world = undefined;
  try {
    group.close();
  } finally {
    if (isWorld) {
      worldStore?.close();
      worldStore = undefined;
    }
  }
}

/** Whoever started this rank can see that it waits for the others to join. */
function joining(body: () => ProcessGroup): ProcessGroup {
  const tell = (globalThis as Record<symbol, unknown>)[Symbol.for('pipewright.joining')];
  const say = (state: 'begin' | 'end' | 'failed'): void => {
    if (typeof tell === 'function') (tell as (state: string) => void)(state);
  };
  say('begin');
  try {
    const group = body();
    say('end');
    return group;
  } catch (error) {
    say('failed');
    worldStore?.close();
    worldStore = undefined;
    throw error;
  }
}

interface Rendezvous {
  readonly rank: number;
  readonly size: number;
  readonly timeoutMs: number;
  readonly networkInterface: string | undefined;
}

/** The stores of the default group, with the prefixes that torch.distributed uses, so that Python ranks can join too. */
function rendezvous(
  options: InitOptions,
  { rank, size, timeoutMs, networkInterface }: Rendezvous,
): { readonly cpu: Store; readonly cuda: Store } {
  let store = options.store;
  if (store === undefined) {
    const host = masterAddress(options);
    if (host === undefined) throw missing('MASTER_ADDR', 'masterAddr');
    const port = options.masterPort ?? fromEnvironment('MASTER_PORT', 'masterPort');
    // torchrun's agent serves a store of its own, which knows no secret.
    const served = process.env['TORCHELASTIC_USE_AGENT_STORE'] === 'True';
    const secret = served ? undefined : (options.secret ?? (process.env['PIPEWRIGHT_SECRET'] || undefined));
    const listen = isLoopback(host) || networkInterface === undefined ? host : addressOf(networkInterface);
    worldStore = tcpStore(host, port, {
      ...{ server: rank === 0 && !served, ranks: size, wait: true, timeoutMs, listen, secret },
      ...(secret === undefined ? {} : { rank }),
    });
    // That store lives through restarts: the keys of earlier ranks are still there.
    const { TORCHELASTIC_RESTART_COUNT: attempt = '0' } = process.env;
    store = (served ? worldStore.prefix(`/worker/attempt_${attempt}`) : worldStore).prefix('default_pg');
  }
  const common = store.prefix('0/');
  return { cpu: common.prefix('cpu/'), cuda: common.prefix('cuda/') };
}

function masterAddress(options: InitOptions): string | undefined {
  return options.masterAddr ?? rankEnvironment().MASTER_ADDR;
}

/** Ranks that find each other at a loopback address are on one machine: nobody else need reach them. */
function interfaceFromEnvironment(options: InitOptions): string | undefined {
  const named = process.env['GLOO_SOCKET_IFNAME'] || undefined;
  if (named !== undefined || options.store !== undefined) return named;
  return isLoopback(masterAddress(options) ?? '') ? loopbackInterface() : undefined;
}

function fromEnvironment(name: RankVariable, option: string): number {
  const text = rankEnvironment()[name];
  if (text === undefined || text === '') throw missing(name, option);
  const value = Number(text);
  if (Number.isInteger(value) && value >= 0) return value;
  throw new TorchError('BAD_ARGUMENT', `initProcessGroup: ${name} is '${text}'; it must be a whole number, at least 0`);
}

function limitFromEnvironment(): number | undefined {
  const text = process.env['PIPEWRIGHT_TIMEOUT_MS'] ?? '';
  if (text === '') return undefined;
  if (Number(text) > 0) return Number(text);
  throw new TorchError('BAD_ARGUMENT', `PIPEWRIGHT_TIMEOUT_MS is '${text}'; give milliseconds, more than 0`);
}

function missing(name: string, option: string): TorchError {
  return new TorchError(
    'BAD_ARGUMENT',
    `initProcessGroup: neither the option ${option} nor the variable ${name} is set; start the program with npx pipewright run -n 2 FILE (or torchrun, srun, spawnThreads), or give { ${option} }`,
  );
}
