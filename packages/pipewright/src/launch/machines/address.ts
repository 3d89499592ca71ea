/** @file Where machine 0 listens, and through which interface the others are reached. */
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { once } from 'node:events';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { addressOf, interfaceOf, isLoopback } from '@pipewright/torch/environment';
import { PipelineError } from '../../base/errors.ts';

/** The network interface through which `host` is reached; undefined if it cannot be found out. */
export async function interfaceTowards(host: string): Promise<string | undefined> {
  const socket = createSocket(isIP(host) === 6 ? 'udp6' : 'udp4');
  try {
    // Connecting a datagram socket sends nothing; it asks the system for a route.
    socket.connect(9, host);
    await once(socket, 'connect');
    return interfaceOf(socket.address().address);
  } catch {
    return undefined;
  } finally {
    socket.close();
  }
}

/** The address of a network interface; one that this machine does not have is refused. */
export function checkInterface(name: string): string {
  const address = addressOf(name);
  if (address !== undefined) return address;
  throw new PipelineError(
    'BAD_OPTION',
    `launch: this machine has no network interface ${JSON.stringify(name)} with an address; it has ${Object.keys(networkInterfaces()).join(', ') || 'none'}`,
  );
}

/**
 * The address at which machine 0 listens: that of the interface, or `host` itself. Undefined, which means all addresses, for
 * a name that is not tied to an interface of this machine.
 */
export async function listenAddress(host: string, networkInterface: string | undefined): Promise<string | undefined> {
  const address = networkInterface === undefined ? undefined : checkInterface(networkInterface);
  if (isLoopback(host)) return host === 'localhost' ? '127.0.0.1' : host;
  if (address !== undefined) return address;
  const found = await lookup(host, { all: true }).catch(() => []);
  const own = found.find(({ address }) => !isLoopback(address) && interfaceOf(address) !== undefined);
  if (own !== undefined) return own.address;
  if (isIP(host) === 0) return undefined;
  throw new PipelineError(
    'BAD_OPTION',
    `launch: masterAddr is ${host}, which is not an address of machine 0; give one that it has, or name its interface with networkInterface`,
  );
}
