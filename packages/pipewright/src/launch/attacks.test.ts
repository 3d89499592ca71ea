/**
 * @file A launch of two machines under attack, by somebody who reaches their ports but does not know the secret: whatever is
 * tried is refused or harmless, and training gives the same bits as without.
 */
import { once } from 'node:events';
import { readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { distributed } from '@pipewright/torch';
import { freePort } from '@pipewright/torch/environment';
import { afterEach, describe, expect, test } from 'vitest';
import { folder, numbersOf, patient } from '../../testing/launching/processes.ts';
import { type Launched, launch } from './index.ts';
import { openGuest } from './machines/guest.ts';

const script = new URL('../../testing/launching/train-under-attack.ts', import.meta.url);
const secret = 'only the two machines know it';
const STEPS = 40;

const sockets = new Set<Socket | Server>();
afterEach(() => {
  for (const socket of sockets) {
    if ('destroy' in socket) socket.destroy();
    else socket.close();
  }
  sockets.clear();
});

/** A connection of the attacker's. */
async function reach(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => undefined);
  sockets.add(socket);
  await once(socket, 'connect');
  return socket;
}

/** What comes on a connection until there are `bytes`, or until it is closed. */
async function read(socket: Socket, bytes: number): Promise<Buffer> {
  const parts: Buffer[] = [];
  let length = 0;
  while (length < bytes && !socket.closed) {
    const part = await Promise.race([
      once(socket, 'data').then(([one]) => one as Buffer),
      once(socket, 'close').then(() => undefined),
    ]).catch(() => undefined);
    if (part === undefined) break;
    parts.push(part);
    length += part.length;
  }
  return Buffer.concat(parts);
}

/** Whether the other side ends the connection. */
async function isEnded(socket: Socket): Promise<boolean> {
  socket.resume();
  if (!socket.closed) await once(socket, 'close').catch(() => undefined);
  return true;
}

async function say(port: number, ...lines: readonly unknown[]): Promise<Socket> {
  const socket = await reach(port);
  for (const line of lines) socket.write(`${typeof line === 'string' ? line : JSON.stringify(line)}\n`);
  return socket;
}

const failure = { rank: 1, message: '\u001b[2Jforged', exitCode: 0, atMs: 0, ended: false };
const hello = { kind: 'hello', version: 1, node: 1, nnodes: 2, ranks: 1, nonce: 'x', proof: 'y'.repeat(43) };

/** A genuine hello of machine 1, got by pretending to be machine 0 towards its launcher with somebody else's challenge. */
async function stolenHello(challenge: string): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1');
  sockets.add(server);
  await once(server, 'listening');
  const { port } = server.address() as { readonly port: number };
  const options = { nnodes: 2, nodeRank: 1, ranks: 1, host: '127.0.0.1', port, secret, joinMs: 2000, endMs: 500 };
  const guest = openGuest(options, { failed: () => undefined }).catch(() => undefined);
  const [victim] = (await once(server, 'connection')) as [Socket];
  victim.on('error', () => undefined).write(challenge);
  const stolen = String(await read(victim, 1));
  victim.destroy();
  server.close();
  await guest;
  return stolen;
}

/** Attacks on the port where the launchers meet. Each returns when it is over. */
const onLaunchers: Readonly<Record<string, (port: number) => Promise<unknown>>> = {
  'a hello without a proof': async (port) => isEnded(await say(port, { ...hello, proof: undefined })),
  'a hello with a made-up proof': async (port) => {
    const socket = await say(port, hello);
    expect(String(await read(socket, 150))).toContain('its secret is another one');
    return isEnded(socket);
  },
  'a genuine hello of another connection': async (port) => {
    const old = await reach(port);
    const stolen = await stolenHello(String(await read(old, 1)));
    old.destroy();
    const socket = await reach(port);
    socket.write(stolen);
    expect(String(await read(socket, 150))).toContain('its secret is another one');
  },
  'a forged failure': async (port) => isEnded(await say(port, { kind: 'failed', failure })),
  'a forged end with an exit code': async (port) =>
    isEnded(await say(port, { kind: 'over', failures: [failure], places: [] })),
  'an end without its fields': async (port) => isEnded(await say(port, { kind: 'over' })),
  'values that are no messages': async (port) => {
    for (const line of ['null', '[]', '3', '"kind"', '{', '{"__proto__":{"kind":"hello"}}', 'GET / HTTP/1.1'])
      await isEnded(await say(port, line));
  },
  'a line without an end': async (port) => {
    const socket = await reach(port);
    const piece = Buffer.alloc(1 << 16, 0x20);
    for (let sent = 0; sent < 1000 && !socket.destroyed; sent++) {
      socket.write(piece);
      await new Promise((resolve) => setImmediate(resolve));
    }
    return isEnded(socket);
  },
  '300 connections that say nothing': async (port) => Promise.all(Array.from({ length: 300 }, () => reach(port))),
  'half of a hello': async (port) => (await reach(port)).write('{"kind":"hel'),
};

/** Attacks on the port of rank 0's store. */
const onStore: Readonly<Record<string, (port: number) => Promise<unknown>>> = {
  'half of a message': async (port) => (await reach(port)).write(Buffer.alloc(3)),
  'random bytes': async (port) => {
    const socket = await reach(port);
    socket.write(Buffer.from(Array.from({ length: 5000 }, (_, i) => (i * 7919) % 256)));
    return isEnded(socket);
  },
  "the protocol of libtorch's own store": async (port) => {
    const socket = await reach(port);
    // Validate, ping, set: as its clients begin.
    socket.write(Buffer.from('003a2b1c00000000000000', 'hex'));
    socket.write(Buffer.alloc(200));
    return isEnded(socket);
  },
  'a client with another secret': async (port) => {
    expect(() => distributed.tcpStore('127.0.0.1', port, { secret: 'x'.repeat(40), timeoutMs: 60_000 })).toThrow(
      /belongs to another run/,
    );
  },
  'its own random number sent back': async (port) => {
    const socket = await reach(port);
    const first = await read(socket, 40);
    socket.write(Buffer.concat([first.subarray(8), Buffer.alloc(8), first.subarray(8)]));
    expect((await read(socket, 37))[0]).toBe(1);
    return isEnded(socket);
  },
  'a message of 4 GB announced': async (port) => {
    const socket = await reach(port);
    socket.write(Buffer.alloc(1 << 20, 0xff));
    return isEnded(socket);
  },
  '600 connections that say nothing': async (port) => Promise.all(Array.from({ length: 600 }, () => reach(port))),
};

/** The addresses, in the system's own form, on which a process listens. */
function listening(pid: number): string[] {
  const owned = new Set(
    readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
      try {
        return [/^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1] ?? ''];
      } catch {
        return [];
      }
    }),
  );
  return ['tcp', 'tcp6'].flatMap((kind) =>
    readFileSync(`/proc/${pid}/net/${kind}`, 'utf8')
      .split('\n')
      .slice(1)
      .map((line) => line.trim().split(/\s+/))
      .filter(([, , , state, , , , , , inode]) => state === '0A' && owned.has(inode ?? ''))
      .map(([, address = '']) => address),
  );
}

const LOOPBACK = /^0100007F:[0-9A-F]{4}$/;

function start(nodeRank: number, masterPort: number, data: object): Launched {
  const place = { nnodes: 2, nodeRank, masterAddr: '127.0.0.1', masterPort, secret };
  return launch({ ranks: 1, ...place, script, data, onLine: () => undefined, ...patient });
}

describe('two machines that train', () => {
  test('are not disturbed by any of 27 attacks, and compute the same bits', async () => {
    const quiet = { steps: STEPS, file: join(folder, 'quiet') };
    writeFileSync(`${quiet.file}.stop`, '');
    const port = await freePort();
    const expected = await Promise.all([start(0, port, quiet).done, start(1, port, quiet).done]);
    expect(JSON.stringify(expected)).toMatch(/"losses":\[0\.\d+/);

    const data = { steps: STEPS, file: join(folder, 'attacked') };
    const masterPort = await freePort();
    const zero = start(0, masterPort, data);
    const hub = masterPort + 1;
    while (!listening(process.pid).some((address) => address.endsWith(hub.toString(16).toUpperCase().padStart(4, '0'))))
      await new Promise((resolve) => setTimeout(resolve, 20));
    // Before machine 1 has come: nobody takes its place.
    for (const attack of Object.values(onLaunchers)) await attack(hub);
    const one = start(1, masterPort, data);
    const pids = await numbersOf(data.file, [0, 1]);
    // While they train.
    for (const attack of Object.values(onLaunchers)) await attack(hub);
    for (const attack of Object.values(onStore)) await attack(masterPort);
    expect(Object.keys(onLaunchers).length * 2 + Object.keys(onStore).length).toBe(27);

    const addresses = [...pids, process.pid].flatMap(listening);
    expect(addresses.length).toBeGreaterThanOrEqual(3);
    expect(addresses.filter((address) => !LOOPBACK.test(address))).toEqual([]);

    writeFileSync(`${data.file}.stop`, '');
    expect(await Promise.all([zero.done, one.done])).toEqual(expected);
  });
});

test('ranks of one machine listen on the loopback only, and only for each other', async () => {
  const data = { steps: 1, file: join(folder, 'alone') };
  const masterPort = await freePort();
  const ranks = launch({ ranks: 2, masterPort, script, data, onLine: () => undefined, ...patient });
  const pids = await numbersOf(data.file, [0, 1]);
  const addresses = pids.flatMap(listening);
  expect(addresses.length).toBeGreaterThanOrEqual(3);
  expect(addresses.filter((address) => !LOOPBACK.test(address))).toEqual([]);
  for (const attack of Object.values(onStore)) await attack(masterPort);
  writeFileSync(`${data.file}.stop`, '');
  await ranks.done;
});
