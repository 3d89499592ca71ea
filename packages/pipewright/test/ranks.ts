/** @file What ranks do in the tests of launching: one scenario of many, given as data or as an argument in JSON. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { distributed, ones, tensor } from '@pipewright/torch';
import { rankStatus } from 'pipewright';

export interface Task {
  readonly scenario: keyof typeof scenarios;
  /** The rank that does something special. */
  readonly who?: number;
  /** A file for what the test wants to know. */
  readonly file?: string;
}

const scenarios = {
  /** Adds up the numbers of all ranks. */
  sum(): unknown {
    const group = distributed.initProcessGroup();
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
  throws({ who }: Task): unknown {
    const group = distributed.initProcessGroup();
    rankStatus.set({ step: 3, slot: group.rank, action: `${group.rank}F0` });
    group.barrier();
    if (group.rank === who) throw new RangeError('the numbers went wrong');
    return waitFor(group, who ?? 0);
  },

  exits({ who }: Task): unknown {
    const group = distributed.initProcessGroup();
    group.barrier();
    if (group.rank === who) process.exit(7);
    return waitFor(group, who ?? 0);
  },

  exitsWell(): unknown {
    const group = distributed.initProcessGroup();
    const next = group.channel((group.rank + 1) % group.size);
    next.send(1, ones([1000]));
    group.channel((group.rank + group.size - 1) % group.size).recv(1);
    return process.exit(0);
  },

  killed({ who }: Task): unknown {
    const group = distributed.initProcessGroup();
    group.barrier();
    if (group.rank === who) process.kill(process.pid, 'SIGKILL');
    return waitFor(group, who ?? 0);
  },

  rejects({ who }: Task): unknown {
    const group = distributed.initProcessGroup();
    group.barrier();
    if (group.rank === who) void Promise.reject(new Error('nobody was listening'));
    return new Promise((resolve) => setTimeout(resolve, 60_000));
  },

  /** Never comes to an end by itself, and never lets the event loop run. */
  spins({ who, file }: Task): unknown {
    const group = distributed.initProcessGroup();
    group.barrier();
    if (group.rank === who) throw new Error('one of them failed');
    const child = file === undefined ? undefined : spawn('sleep', ['1000'], { stdio: 'ignore' });
    if (child !== undefined) writeFileSync(`${file}.${group.rank}`, String(child.pid));
    for (;;) rankStatus.set({ slot: 5, action: '1F2' });
  },

  /** Each rank waits for the next one; the last one works for ever. */
  waits({ file }: Task): unknown {
    const group = distributed.initProcessGroup();
    group.barrier();
    const next = group.rank + 1;
    if (file !== undefined) writeFileSync(`${file}.${group.rank}`, String(process.pid));
    if (next < group.size) return waitFor(group, next);
    for (;;) rankStatus.set({ slot: 12, action: '2F1' });
  },

  returnsOdd(): unknown {
    return () => 1;
  },
} satisfies Record<string, (task: Task) => unknown>;

function waitFor(group: ReturnType<typeof distributed.initProcessGroup>, peer: number): unknown {
  rankStatus.set({ slot: 17, action: `${group.rank}RECV_B1`, waitingFor: peer });
  return group.channel(peer).recv(99).item();
}

export function main(data: Task | undefined): unknown {
  const task = data ?? (JSON.parse(process.argv[2] ?? '') as Task);
  return scenarios[task.scenario](task);
}
