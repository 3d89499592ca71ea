/** @file Network interfaces through which ranks find each other. */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { networkInterfaces } from 'node:os';

/** The network interface through which `host` is reached, or undefined where that cannot be told. */
export async function interfaceTowards(host: string): Promise<string | undefined> {
  const socket = createSocket('udp4');
  try {
    // Connecting a datagram socket sends nothing; it asks the system for a route.
    socket.connect(9, host);
    await once(socket, 'connect');
    const { address } = socket.address();
    const found = Object.entries(networkInterfaces()).find(([, addresses]) =>
      addresses?.some((one) => one.address === address),
    );
    return found?.[0];
  } catch {
    return undefined;
  } finally {
    socket.close();
  }
}
