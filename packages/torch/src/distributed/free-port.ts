/** @file Ports for ranks to find each other. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';

/** The first port worth trying. */
const FIRST_PORT = 10_000;
const ATTEMPTS = 100;

/**
 * A port of this machine that nobody uses now, nor the one after it. It is not one of those that the system gives to
 * whoever asks for any port: it shall still be free when rank 0 has started and wants it.
 *
 * @example process.env['MASTER_PORT'] = String(await distributed.freePort())
 */
export async function freePort(): Promise<number> {
  const end = firstGivenPort() - 1;
  for (let attempt = 0; attempt < ATTEMPTS && end > FIRST_PORT; attempt++) {
    const port = FIRST_PORT + Math.floor(Math.random() * (end - FIRST_PORT));
    if ((await listens(port)) === port && (await listens(port + 1)) === port + 1) return port;
  }
  return (await listens(0)) ?? 0;
}

/** The first of the ports that the system gives to whoever asks for any. */
function firstGivenPort(): number {
  try {
    return Number.parseInt(readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8'), 10);
  } catch {
    return 32_768;
  }
}

/** The port that one can listen on when asking for `port`, or undefined. */
async function listens(port: number): Promise<number | undefined> {
  const server = createServer().listen(port);
  try {
    await once(server, 'listening');
  } catch {
    return undefined;
  }
  const found = (server.address() as { readonly port: number }).port;
  server.close();
  await once(server, 'close');
  return found;
}
