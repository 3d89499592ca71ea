/** @file Making groups: of threads by name, of processes through a store. */

import { native } from '../../addon/addon.ts';
import { checkGiven, checkObject, checkText, show } from '../../base/checks.ts';
import { checkOptions, TorchError } from '../../base/errors.ts';
import { loadCudaAddon } from '../../setup/load-addon.ts';
import { ownGpu } from '../../tensor/own-gpu.ts';
import { DistributedError, withoutNoise } from '../base/errors.ts';
import { dist } from '../base/native.ts';
import { checkTimeout, type Store } from '../base/store.ts';
import { Group, type GroupMember } from './group.ts';

/** What every group needs. */
export interface GroupOptions {
  readonly rank: number;
  readonly size: number;
  /** The same on all ranks, and different from that of other groups alive. */
  readonly name?: string | undefined;
  /** The time limit of waits that give none, in milliseconds. Default 5 minutes. */
  readonly timeoutMs?: number | undefined;
}

/** A group of worker threads. */
export interface ThreadGroupOptions extends GroupOptions {
  readonly name: string;
  /** How many messages of one sender may wait unread before its sends block. Default: no bound. */
  readonly bound?: number | undefined;
}

/** A group over gloo. */
export interface GlooGroupOptions extends GroupOptions {
  /** The network interface to listen on, such as `eth0`; GLOO_SOCKET_IFNAME otherwise. */
  readonly networkInterface?: string | undefined;
  /** The address of this machine that the others can reach. */
  readonly host?: string | undefined;
}

/** A group over NCCL. */
export interface NcclGroupOptions extends GlooGroupOptions {
  /** The CUDA device of this rank. Default: what `'cuda'` means in this thread. */
  readonly device?: number | undefined;
}

/**
 * Joins a group of threads of this process, found by name. Tensors change hands with no copy.
 *
 * @example const group = threadGroup({ name: 'train', rank, size: 4 })
 */
export function threadGroup(options: ThreadGroupOptions): Group {
  checkObject('threadGroup', 'the argument', options, '{ name, rank, size }');
  checkOptions('threadGroup', options, ['name', 'rank', 'size', 'timeoutMs', 'bound']);
  const bound = options.bound ?? 0;
  if (!Number.isInteger(bound) || bound < 0) {
    throw new TorchError(
      'BAD_ARGUMENT',
      `threadGroup: bound is ${show(bound)}; give a number of messages, 0 for no bound`,
    );
  }
  const { name, rank, size, timeoutMs } = checkGroup('threadGroup', options);
  return explained('threadGroup', { name, rank }, () => {
    const endpoint = dist.joinThreads(name, rank, size, bound);
    return new Group({
      name,
      backend: 'thread',
      rank,
      size,
      timeoutMs,
      endpoint,
      handle: dist.threadGroup(endpoint),
      makeGroup: (member) => threadGroup({ ...member, bound }),
    });
  });
}

/**
 * Joins a group over gloo through a store that all ranks share; returns when all are connected.
 *
 * @example const group = glooGroup(tcpStore('127.0.0.1', 29500, { server: rank === 0 }), { rank, size: 2 })
 */
export function glooGroup(store: Store, options: GlooGroupOptions): Group {
  checkOptions('glooGroup', options, ['name', 'rank', 'size', 'timeoutMs', 'networkInterface', 'host']);
  const { name, rank, size, timeoutMs } = checkGroup('glooGroup', options);
  const networkInterface = options.networkInterface ?? process.env['GLOO_SOCKET_IFNAME'] ?? null;
  checkStore('glooGroup', store);
  return explained('glooGroup', { name, rank }, () => {
    const handle = connectGloo(store, { name, rank, size, timeoutMs, networkInterface, host: options.host });
    return new Group({
      name,
      backend: 'gloo',
      rank,
      size,
      timeoutMs,
      handle,
      makeGroup: (member) => glooGroup(store.prefix(`${member.name}/`), { ...options, ...member }),
    });
  });
}

/** What gloo must know of a rank. */
interface GlooPlace {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly timeoutMs: number;
  readonly networkInterface: string | null;
  readonly host: string | undefined;
}

/** Longest wait for the others after this rank is connected, in milliseconds. */
const CONNECTED_MS = 10_000;

/**
 * Connects this rank with all others. Gloo returns when this rank is connected; one that then leaves at once would end the
 * connecting of the others, so it waits for them. Ranks in Python say nothing of themselves and are not waited for.
 */
function connectGloo(store: Store, place: GlooPlace): number {
  const { name, rank, size, timeoutMs, networkInterface, host } = place;
  const here = (of: number): string => `pipewright/here/${of}`;
  const connected = (of: number): string => `pipewright/connected/${of}`;
  store.set(here(rank), '1');
  const handle = dist.glooGroup(store.handle, name, rank, size, timeoutMs, networkInterface, host ?? null);
  store.set(connected(rank), '1');
  try {
    const others = Array.from({ length: size }, (_, of) => of).filter((of) => of !== rank);
    // One question where all are ours, which is nearly always.
    const ours = store.check(others.map(here)) ? others : others.filter((of) => store.check([here(of)]));
    if (ours.length > 0) store.wait(ours.map(connected), { timeoutMs: Math.min(timeoutMs, CONNECTED_MS) });
  } catch {
    // Whoever had the store has left, which it does when all are connected; or a rank failed, which the next message tells.
  }
  return handle;
}

/**
 * Joins a group over NCCL, one CUDA device per rank. Objects and channels go over gloo beside it.
 *
 * @example const group = ncclGroup(store, { rank, size: 8, device: rank })
 */
export function ncclGroup(store: Store, options: NcclGroupOptions): Group {
  checkOptions('ncclGroup', options, ['name', 'rank', 'size', 'timeoutMs', 'networkInterface', 'host', 'device']);
  const { name, rank, size, timeoutMs } = checkGroup('ncclGroup', options);
  checkStore('ncclGroup', store);
  const { device = ownGpu(), ...rest } = options;
  installNccl();
  const companion = glooGroup(store.prefix('companion/'), { ...rest, name: `${name}/companion` });
  return explained('ncclGroup', { name, rank }, () => {
    const handle = dist.ncclGroup(store.handle, name, rank, size, timeoutMs, device);
    return new Group({
      name,
      backend: 'nccl',
      rank,
      size,
      timeoutMs,
      handle,
      companion,
      nccl: {
        handle: () => handle,
        made: () => handle,
        lanes: { group: name, rank, timeoutMs, beside: companion.native, store: store.handle, device },
      },
      makeGroup: (member) => ncclGroup(store.prefix(`${member.name}/`), { ...options, ...member }),
    });
  });
}

/**
 * Joins a group over gloo for CPU tensors and over NCCL for CUDA tensors, as `backend: 'cpu:gloo,cuda:nccl'` means. NCCL is
 * set up by the first call that needs it.
 *
 * @example const group = mixedGroup(store, { rank, size: 8 })
 */
export function mixedGroup(stores: { readonly cpu: Store; readonly cuda: Store }, options: NcclGroupOptions): Group {
  checkOptions('mixedGroup', options, ['name', 'rank', 'size', 'timeoutMs', 'networkInterface', 'host', 'device']);
  const { name, rank, size, timeoutMs } = checkGroup('mixedGroup', options);
  checkObject('mixedGroup', 'the stores', stores, '{ cpu, cuda }');
  checkStore('mixedGroup', stores.cpu);
  checkStore('mixedGroup', stores.cuda);
  const { device = ownGpu(), ...rest } = options;
  installNccl();
  const networkInterface = options.networkInterface ?? process.env['GLOO_SOCKET_IFNAME'] ?? null;
  return explained('mixedGroup', { name, rank }, () => {
    const gloo = connectGloo(stores.cpu, { name, rank, size, timeoutMs, networkInterface, host: options.host });
    let made: number | undefined;
    return new Group({
      name,
      backend: 'cpu:gloo,cuda:nccl',
      rank,
      size,
      timeoutMs,
      handle: gloo,
      nccl: {
        handle: () => (made ??= dist.ncclGroup(stores.cuda.handle, name, rank, size, timeoutMs, device)),
        made: () => made,
        lanes: { group: name, rank, timeoutMs, beside: gloo, store: stores.cuda.handle, device },
      },
      makeGroup: (member) =>
        mixedGroup(
          { cpu: stores.cpu.prefix(`${member.name}/`), cuda: stores.cuda.prefix(`${member.name}/`) },
          { ...rest, device, ...member },
        ),
    });
  });
}

function checkStore(where: string, store: unknown): void {
  checkGiven(
    where,
    typeof (store as Store | null | undefined)?.handle === 'number',
    ['the store', store],
    'a store, as tcpStore() gives',
  );
}

/** Whether CUDA tensors can go over NCCL here. */
export function hasNccl(): boolean {
  if (native.cudaDeviceCount() === 0) return false;
  const addon = loadCudaAddon() as { ncclVersion?: () => number } | null;
  return (addon?.ncclVersion?.() ?? 0) > 0;
}

/** Ends the waits of a group of this process from any thread, now and from now on. Returns how many ranks it reached. */
export function abortGroup(name: string, reason: string): number {
  checkText('abortGroup', 'the name', name);
  checkText('abortGroup', 'the reason', reason);
  return dist.abortWaits(name, -1, reason);
}

/**
 * Ends the waits that are blocked at this moment, of one rank or of all in this process, from any thread. The group stays
 * usable. Returns how many ranks it reached.
 *
 * @example cancelWaits('train', 'the user pressed stop', { rank: 2 })
 */
export function cancelWaits(name: string, reason: string, options?: { readonly rank?: number | undefined }): number {
  checkText('cancelWaits', 'the name', name);
  checkText('cancelWaits', 'the reason', reason);
  checkOptions('cancelWaits', options, ['rank']);
  return dist.cancelWaits(name, options?.rank ?? -1, reason);
}

function installNccl(): void {
  const addon = loadCudaAddon() as { installNccl?: (registry: bigint) => void } | null;
  if (addon?.installNccl === undefined) {
    throw new TorchError(
      'NO_NCCL',
      'ncclGroup: the CUDA addon with NCCL is not here; see: npx pipewright doctor, or use the gloo backend',
    );
  }
  addon.installNccl(dist.backendRegistry());
}

/** Checks what every group needs, and completes it. */
export function checkGroup(where: string, options: GroupOptions): GroupMember {
  checkObject(where, 'the options', options, '{ rank, size }');
  const { rank, size, name = 'default' } = options;
  if (!Number.isInteger(size) || size < 1) {
    throw new TorchError('RANK', `${where}: size is ${show(size)}; give the number of ranks, at least 1`);
  }
  if (!Number.isInteger(rank) || rank < 0 || rank >= size) {
    throw new TorchError('RANK', `${where}: rank is ${show(rank)}; in a group of ${size} it is from 0 to ${size - 1}`);
  }
  if (typeof name !== 'string' || name === '')
    throw new TorchError('BAD_ARGUMENT', `${where}: name is ${show(name)}; give a non-empty string`);
  return { name, rank, size, timeoutMs: checkTimeout(where, options.timeoutMs) };
}

function explained(operation: string, who: { name: string; rank: number }, body: () => Group): Group {
  try {
    return body();
  } catch (error) {
    if (!(error instanceof TorchError) || error instanceof DistributedError) throw error;
    const hint = error.code === 'TIMED_OUT' ? '; are all ranks running, with the same store and size?' : '';
    const what = withoutNoise(error.message);
    const cause = what === error.message ? { cause: error } : {};
    const message = `${operation} '${who.name}', rank ${who.rank}: ${what}${hint}`;
    throw new DistributedError(error.code, message, { operation, group: who.name, rank: who.rank, ...cause });
  }
}
