/** @file Stores: keys and values by which ranks find each other. */
import { show } from '../../base/checks.ts';
import { checkOptions, TorchError, type TorchErrorCode } from '../../base/errors.ts';
import { dist } from './native.ts';

/** Limits of a store. */
export interface StoreOptions {
  /** How long `get` and `wait` wait for others, in milliseconds. Default 5 minutes. */
  readonly timeoutMs?: number | undefined;
}

/** What a TCP store needs to know. */
export interface TcpStoreOptions extends StoreOptions {
  /** Serve the store here, as rank 0 does. */
  readonly server?: boolean | undefined;
  /** How many ranks will use it; with `wait`, the server waits for them. */
  readonly ranks?: number | undefined;
  readonly wait?: boolean | undefined;
  /** Where the server listens, an address of this machine. Default: `host`, and nowhere else. */
  readonly listen?: string | undefined;
  /** Only those who know it may use the store: at least 16 characters. Ranks in Python can use stores without one only. */
  readonly secret?: string | undefined;
  /** Which rank this is: with a secret, the server takes each of `ranks` once. */
  readonly rank?: number | undefined;
}

/** Default time limit of every wait of this folder: five minutes. */
const defaultTimeoutMs = 300_000;

/** Checks a time limit, or gives the default one. */
export function checkTimeout(
  where: string,
  timeoutMs: number | undefined,
  otherwise: number = defaultTimeoutMs,
): number {
  if (timeoutMs === undefined) return otherwise;
  if (typeof timeoutMs === 'number' && timeoutMs >= 0) return Math.min(Math.ceil(timeoutMs), 1e12);
  throw new TorchError('BAD_ARGUMENT', `${where}: timeoutMs is ${show(timeoutMs)}; give milliseconds, at least 0`);
}

/**
 * Keys and values shared by ranks. Make one with `tcpStore`, `hashStore` or `fileStore`.
 *
 * @example store.set('config', JSON.stringify({ lr: 0.1 })); store.getText('config')
 */
export class Store {
  /** The addon's handle; zero once closed. */
  h: number;
  readonly timeoutMs: number;
  /** In words, for messages: `tcp://127.0.0.1:29500`. */
  readonly description: string;

  constructor(handle: number, description: string, timeoutMs: number = defaultTimeoutMs) {
    this.h = handle;
    this.description = description;
    this.timeoutMs = timeoutMs;
  }

  /** The handle, or an error when the store is closed. */
  get handle(): number {
    if (this.h === 0) throw new TorchError('CLOSED', `the store ${this.description} is closed`);
    return this.h;
  }

  /** The port a TCP store serves or uses; 0 for others. */
  get port(): number {
    return dist.storePort(this.handle);
  }

  /** Sets a value. */
  set(key: string, value: string | Uint8Array): void {
    dist.storeSet(this.handle, checkKey('set', key), value);
  }

  /** The value of a key; waits until somebody has set it. */
  get(key: string, options?: StoreOptions): Uint8Array {
    const timeoutMs = this.limit('get', options);
    return this.explain(`get('${key}')`, timeoutMs, () => dist.storeGet(this.handle, checkKey('get', key), timeoutMs));
  }

  /** The same, as text. */
  getText(key: string, options?: StoreOptions): string {
    return new TextDecoder().decode(this.get(key, options));
  }

  /** Adds to a counter and returns the sum so far. @example const rank = store.add('ranks', 1) - 1 */
  add(key: string, value: number): number {
    if (!Number.isSafeInteger(value)) throw new TorchError('BAD_ARGUMENT', `Store.add: ${value} is not an integer`);
    return dist.storeAdd(this.handle, checkKey('add', key), value);
  }

  /** Waits until all keys are set. */
  wait(keys: readonly string[], options?: StoreOptions): void {
    const timeoutMs = this.limit('wait', options);
    for (const key of keys) checkKey('wait', key);
    this.explain(`wait(${keys.map((key) => `'${key}'`).join(', ')})`, timeoutMs, () =>
      dist.storeWait(this.handle, keys, timeoutMs),
    );
  }

  /** Whether all keys are set now. */
  check(keys: readonly string[]): boolean {
    return dist.storeCheck(this.handle, keys);
  }

  /** Deletes a key; false where there was none. */
  delete(key: string): boolean {
    return dist.storeDelete(this.handle, checkKey('delete', key));
  }

  /** Sets `wanted` if the value is `expected`; returns the value afterwards. */
  compareSet(key: string, expected: string, wanted: string): string {
    return new TextDecoder().decode(dist.storeCompareSet(this.handle, checkKey('compareSet', key), expected, wanted));
  }

  /** Number of keys, those of the store's own bookkeeping included. */
  get size(): number {
    return dist.storeCount(this.handle);
  }

  /** The same store with all keys under a prefix. */
  prefix(prefix: string): Store {
    return new Store(dist.prefixStore(prefix, this.handle), `${this.description}#${prefix}`, this.timeoutMs);
  }

  /** Leaves the store; a server stops serving when its last user in this process has left. */
  close(): void {
    if (this.h === 0) return;
    dist.storeClose(this.h);
    this.h = 0;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  private limit(method: string, options: StoreOptions | undefined): number {
    checkOptions(`Store.${method}`, options, ['timeoutMs']);
    return checkTimeout(`Store.${method}`, options?.timeoutMs, this.timeoutMs);
  }

  private explain<T>(call: string, timeoutMs: number, body: () => T): T {
    try {
      return body();
    } catch (error) {
      if (!(error instanceof TorchError) || error.code !== 'TIMED_OUT') throw error;
      const message = `Store.${call}: nobody set it within ${timeoutMs} ms in ${this.description}; is every rank running, with the same address?`;
      throw new TorchError('TIMED_OUT', message, { cause: error });
    }
  }
}

/**
 * A store served over TCP by one rank and used by all. Port 0 lets the system choose: see `port`.
 *
 * @example const store = tcpStore('127.0.0.1', 29500, { server: rank === 0 })
 */
export function tcpStore(host: string, port: number, options?: TcpStoreOptions): Store {
  checkOptions('tcpStore', options, ['server', 'ranks', 'wait', 'timeoutMs', 'listen', 'secret', 'rank']);
  if (typeof host !== 'string' || host === '')
    throw new TorchError('BAD_ARGUMENT', `tcpStore: host is ${show(host)}; give a name or an address`);
  if (!Number.isInteger(port) || port < 0 || port > 65535) {
    throw new TorchError('BAD_ARGUMENT', `tcpStore: port is ${show(port)}; give a whole number from 0 to 65535`);
  }
  const server = options?.server === true;
  if (port === 0 && !server) throw new TorchError('BAD_ARGUMENT', 'tcpStore: port 0 is for the server; give its port');
  const timeoutMs = checkTimeout('tcpStore', options?.timeoutMs);
  const { ranks, rank, listen, secret } = options ?? {};
  checkUsers(ranks, rank);
  if (listen !== undefined && (typeof listen !== 'string' || listen === ''))
    throw new TorchError('BAD_ARGUMENT', `tcpStore: listen is ${show(listen)}; give an address of this machine`);
  checkSecret('tcpStore', secret);
  try {
    const handle = dist.tcpStore(
      ...([host, port, server, ranks ?? -1, timeoutMs, options?.wait === true] as const),
      ...([listen ?? null, secret ?? null, rank ?? -1] as const),
    );
    return new Store(handle, `tcp://${host}:${dist.storePort(handle)}`, timeoutMs);
  } catch (error) {
    if (error instanceof TorchError && (error.code === 'REFUSED' || error.code === 'BAD_ARGUMENT'))
      throw new TorchError(error.code, `tcpStore: ${error.message}${refusedHint(error.code)}`, { cause: error });
    const late = error instanceof TorchError && error.code === 'TIMED_OUT';
    const what = !server
      ? `no store answered at ${host}:${port} within ${timeoutMs} ms`
      : late
        ? `not all of ${options?.ranks ?? 0} ranks came to ${host}:${port} within ${timeoutMs} ms`
        : `could not serve a store at ${host}:${port}`;
    const hint = !server
      ? 'is the rank that serves it running?'
      : late
        ? 'are all ranks running, with the same address?'
        : 'is the port in use?';
    const code = error instanceof TorchError ? error.code : 'LIBTORCH';
    throw new TorchError(code, `tcpStore: ${what}; ${hint} (${(error as Error).message})`, { cause: error });
  }
}

/** The shortest secret: one that cannot be found by trying. */
const SHORTEST_SECRET = 16;

/** Checks a secret; nothing where there is none. */
export function checkSecret(where: string, secret: string | undefined): void {
  if (secret === undefined || (typeof secret === 'string' && secret.length >= SHORTEST_SECRET)) return;
  // The secret itself must not appear in a message.
  const got = typeof secret === 'string' ? `has ${secret.length} characters` : `is a ${typeof secret}`;
  throw new TorchError('BAD_ARGUMENT', `${where}: the secret ${got}; give at least ${SHORTEST_SECRET}, at random`);
}

function checkUsers(ranks: number | undefined, rank: number | undefined): void {
  if (ranks !== undefined && !(Number.isInteger(ranks) && ranks >= 1))
    throw new TorchError('BAD_ARGUMENT', `tcpStore: ranks is ${String(ranks)}; give how many use the store`);
  if (rank === undefined) return;
  if (ranks === undefined || !(Number.isInteger(rank) && rank >= 0 && rank < ranks))
    throw new TorchError(
      'RANK',
      `tcpStore: rank is ${String(rank)} and ranks ${String(ranks)}; a rank is from 0 to ranks - 1`,
    );
}

function refusedHint(code: TorchErrorCode): string {
  return code === 'REFUSED'
    ? '; ranks of one run have the same secret (PIPEWRIGHT_SECRET), address and number of ranks, and a port that no other run uses'
    : '; the address of a store must be one of the machine that serves it, or give listen';
}

/** A store in this process, shared by all its threads under one name. @example hashStore('train') */
export function hashStore(name: string, options?: StoreOptions): Store {
  checkOptions('hashStore', options, ['timeoutMs']);
  return new Store(
    dist.hashStore(checkKey('hashStore', name)),
    `hash:${name}`,
    checkTimeout('hashStore', options?.timeoutMs),
  );
}

/** A store in a file that all ranks can reach; it must not exist from an earlier run. @example fileStore('/tmp/run1', 4) */
export function fileStore(path: string, ranks: number, options?: StoreOptions): Store {
  checkOptions('fileStore', options, ['timeoutMs']);
  if (!Number.isInteger(ranks) || ranks < 1)
    throw new TorchError('BAD_ARGUMENT', `fileStore: ranks is ${show(ranks)}; give how many use the file`);
  return new Store(
    dist.fileStore(checkKey('fileStore', path), ranks),
    `file:${path}`,
    checkTimeout('fileStore', options?.timeoutMs),
  );
}

function checkKey(method: string, key: string): string {
  if (typeof key === 'string' && key !== '') return key;
  throw new TorchError(
    'BAD_ARGUMENT',
    `${method}: ${key === '' ? 'an empty string' : show(key)} is not a key; give a non-empty string`,
  );
}
