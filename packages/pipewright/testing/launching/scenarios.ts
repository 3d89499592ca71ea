/** @file What ranks do in the tests of launching: one scenario of many, given as data or as an argument in JSON. */
import { spawn } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { isMainThread, parentPort } from 'node:worker_threads';
import type { distributed as Distributed } from '@pipewright/torch';
import type { rankStatus as RankStatus } from 'pipewright';

export interface Task {
  readonly scenario: keyof typeof scenarios;
  /** The rank that does something special. */
  readonly who?: number;
  /** A file for what the test wants to know. */
  readonly file?: string;
  /** How often it fails. */
  readonly times?: number;
  /** In which way. */
  readonly how?: string;
  /** A file to wait for before waiting for another rank. */
  readonly go?: string;
}

/** The engine takes a second to load: only those that use it do. */
async function engine(): Promise<Engine> {
  const { distributed, ones, tensor } = await import('@pipewright/torch');
  const compiled = new URL('../../dist/status/rank-status.js', import.meta.url).href;
  const { rankStatus } = (await import(compiled)) as { readonly rankStatus: typeof RankStatus };
  // The time limit of a test is for the wait it is about: ranks may need longer to find each other.
  return { group: distributed.initProcessGroup({ timeoutMs: 60_000 }), ones, tensor, rankStatus };
}

interface Engine extends Pick<typeof import('@pipewright/torch'), 'ones' | 'tensor'> {
  readonly group: Distributed.ProcessGroup;
  readonly rankStatus: typeof RankStatus;
}

const scenarios = {
  /** Adds up the numbers of all ranks. */
  async sum(): Promise<unknown> {
    const { group, tensor } = await engine();
    const total = tensor([group.rank + 1]);
    group.allReduce(total);
    const { RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE } = process.env;
    console.log(`sum ${total.item()}`);
    return { sum: total.item(), env: [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE], args: process.argv.slice(2) };
  },

  /** Prints in pieces, on both streams, without pausing between the lines. */
  print(): unknown {
    const rank = process.env['RANK'];
    process.stdout.write(`one of ${rank}, in `);
    process.stdout.write('two pieces\nnext line\n');
    console.error(`error of ${rank}`);
    process.stdout.write(Buffer.from('größe'));
    process.stdout.write(' without an end');
    return undefined;
  },

  /** One rank fails, the others wait for it. */
  async throws({ who }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    rankStatus.set({ step: 3, slot: group.rank, action: `${group.rank}F0` });
    if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
    awaitOthers(group);
    throw new RangeError('the numbers went wrong');
  },

  async exits({ who }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
    awaitOthers(group);
    return process.exit(7);
  },

  async exitsWell(): Promise<unknown> {
    const { group, ones } = await engine();
    const next = group.channel((group.rank + 1) % group.size);
    next.send(1, ones([1000]));
    group.channel((group.rank + group.size - 1) % group.size).recv(1);
    return process.exit(0);
  },

  async killed({ who }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
    awaitOthers(group);
    return process.kill(process.pid, 'SIGKILL');
  },

  /** One rank is stopped, and the others have nothing more to do. */
  async stopsAlone({ who }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    group.barrier();
    if (group.rank !== who) return undefined;
    rankStatus.set({ slot: 3, action: `${group.rank}B0` });
    return process.kill(process.pid, 'SIGSTOP');
  },

  async rejects({ who }: Task): Promise<unknown> {
    const { group } = await engine();
    if (group.rank === who) {
      awaitOthers(group);
      void Promise.reject(new Error('nobody was listening'));
    } else group.channel(who ?? 0).sendObject('about to do nothing');
    return new Promise((resolve) => setTimeout(resolve, 1e6));
  },

  /** Never comes to an end by itself, and never lets the event loop run. */
  async spins({ who, file }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    if (group.rank === who) {
      awaitOthers(group);
      throw new Error('one of them failed');
    }
    const child = file === undefined ? undefined : spawn('sleep', ['1000'], { stdio: 'ignore' });
    if (child !== undefined) writeFileSync(`${file}.${group.rank}`, String(child.pid));
    group.channel(who ?? 0).sendObject('about to spin');
    for (;;) rankStatus.set({ slot: 5, action: '1F2' });
  },

  /** Each rank waits for the next one; the last one works for ever. All have said so before the first time limit begins. */
  async waits({ file, go }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    const next = group.rank + 1;
    const isLast = next === group.size;
    if (isLast) rankStatus.set({ slot: 12, action: '2F1' });
    else rankStatus.set({ slot: 17, action: `${group.rank}RECV_B1`, waitingFor: next });
    group.barrier();
    if (file !== undefined) writeFileSync(`${file}.${group.rank}`, String(process.pid));
    while (isLast) rankStatus.set({ slot: 12, action: '2F1' });
    while (go !== undefined && !existsSync(go)) pause(10);
    return receive(group, next);
  },

  /** Prints much more than anybody can read at once, then fails as `how` says. */
  prints({ how }: Task): unknown {
    for (let i = 0; i < 2000; i++) console.log(`line ${i} ${'x'.repeat(100)}`);
    console.error('last words');
    if (how === 'exit') process.exit(7);
    throw new Error('after printing');
  },

  /** One rank throws an error that is hard to read, the others wait for it. */
  async throwsOdd({ who, how }: Task): Promise<unknown> {
    const { group, rankStatus } = await engine();
    if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
    awaitOthers(group);
    const error = new Error('an odd error');
    if (how === 'own cause') error.cause = error;
    else
      Object.defineProperty(error, 'message', {
        get() {
          throw new Error('no message');
        },
      });
    throw error;
  },

  /** One rank comes to a good end although the others wait for it: before they have joined, or afterwards. */
  async leaves({ who, how }: Task): Promise<unknown> {
    if (how === 'before' && Number(process.env['RANK']) === who) return undefined;
    const { group, rankStatus } = await engine();
    if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
    awaitOthers(group);
    return how === 'exit' ? process.exit(0) : undefined;
  },

  /** Waits in its first attempt until a machine is lost, and adds up the numbers of all ranks in the next one. */
  async survives({ file }: Task): Promise<unknown> {
    const { group, rankStatus, tensor } = await engine();
    const isFirst = !existsSync(`${file}.first.${group.rank}`);
    if (isFirst) {
      group.barrier();
      writeFileSync(`${file}.first.${group.rank}`, String(process.pid));
      return receiveFrom({ group, rankStatus });
    }
    const total = tensor([group.rank + 1]);
    group.allReduce(total);
    writeFileSync(`${file}.sum.${group.rank}`, String(total.item()));
    return total.item();
  },

  /** Fails in its first attempts, each time in another way, and then adds up the numbers of all ranks. */
  async flaky({ who, times, file }: Task): Promise<unknown> {
    const { group, rankStatus, tensor } = await engine();
    const count = Number(process.env['TORCHELASTIC_RESTART_COUNT']);
    rankStatus.set({ step: 5, slot: 7, action: `${group.rank}F1` });
    group.barrier();
    if (file !== undefined) writeFileSync(`${file}.${count}.${group.rank}`, String(process.pid));
    if (count < (times ?? 0)) {
      if (group.rank !== who) return waitFor({ group, rankStatus }, who ?? 0);
      awaitOthers(group);
      if (count === 1) process.kill(process.pid, 'SIGKILL');
      throw new Error(`attempt ${count} failed`);
    }
    const total = tensor([group.rank + 1]);
    group.allReduce(total);
    const { TORCHELASTIC_MAX_RESTARTS: most, TORCHELASTIC_RUN_ID: id, GROUP_WORLD_SIZE: machines } = process.env;
    return { sum: total.item(), count, most, machines, hasId: (id ?? '').length > 8 };
  },

  /** One rank fails in its training loop until it was started again `times` times; `how` may be the code of its second error. */
  async replaced({ who, times = 0, how }: Task): Promise<unknown> {
    const { trainLoop } = await import('pipewright');
    const count = Number(process.env['TORCHELASTIC_RESTART_COUNT']);
    const counters = { steps: 0 };
    await trainLoop({
      steps: 2,
      state: { counters },
      connect: (group) => group,
      step: ({ rank }) => {
        if (rank === who && count < times)
          throw Object.assign(
            new Error(`attempt ${count} failed`),
            count === 1 && how !== undefined ? { code: how } : {},
          );
        counters.steps++;
      },
    });
    return { steps: counters.steps, count };
  },

  /** A rank that starts its own script: without a word against it, every rank would do so. */
  async launchesItself(): Promise<unknown> {
    const { launch } = await import('pipewright/launch');
    return launch({ ranks: 1, script: import.meta.url, data: { scenario: 'exits256' } }).done;
  },

  exits256(): unknown {
    return process.exit(256);
  },

  /** Messages of the script's own are not the launcher's business. */
  chats(): unknown {
    for (const message of [null, 3, 'text', { kind: 'error' }, { kind: 'result' }, []])
      if (isMainThread) process.send?.(message);
      else if (typeof message !== 'object' || message === null || !('kind' in message))
        parentPort?.postMessage(message);
    return 'done';
  },

  returnsOdd({ how }: Task): unknown {
    if (how === 'weak map') return new WeakMap();
    return { best: [() => 1] };
  },
  async returnsTensor(): Promise<unknown> {
    const { ones } = await import('@pipewright/torch');
    return { step: 3, losses: [1, new Map([['last', ones([1])]])] };
  },
} satisfies Record<string, (task: Task) => unknown>;

/** Waits for the other of two ranks in vain. */
function receiveFrom({ group }: Pick<Engine, 'group' | 'rankStatus'>): unknown {
  return receive(group, 1 - group.rank);
}

/** Waits for a rank in vain, and tells it so before: see `awaitOthers`. */
function waitFor({ group, rankStatus }: Pick<Engine, 'group' | 'rankStatus'>, peer: number): unknown {
  rankStatus.set({ slot: 17, action: `${group.rank}RECV_B1`, waitingFor: peer });
  group.channel(peer).sendObject('about to wait');
  return receive(group, peer);
}

/** Returns when all others have come to where they shall be when this rank fails. */
function awaitOthers(group: Distributed.ProcessGroup): void {
  for (let rank = 0; rank < group.size; rank++) if (rank !== group.rank) group.channel(rank).recvObject();
}

function pause(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function receive(group: Distributed.ProcessGroup, peer: number): unknown {
  return group
    .channel(peer)
    .recv(99, { timeoutMs: Number(process.env['PIPEWRIGHT_TIMEOUT_MS'] ?? group.timeoutMs) })
    .item();
}

export function main(data: Task | undefined): unknown {
  const task = data ?? (JSON.parse(process.argv[2] ?? '') as Task);
  return scenarios[task.scenario](task);
}
