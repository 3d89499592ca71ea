/** @file Addresses and network interfaces of this machine. */
import { networkInterfaces } from 'node:os';

/** Whether only this machine can be meant. @example isLoopback('127.0.0.1') // true */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(?:\.\d{1,3}){3}$/.test(host);
}

/** The name of the loopback interface, or undefined where there is none. */
export function loopbackInterface(): string | undefined {
  return Object.entries(networkInterfaces()).find(([, addresses]) => addresses?.some(({ internal }) => internal))?.[0];
}

/** The first address of an interface, IPv4 before IPv6, or undefined where it has none. */
export function addressOf(networkInterface: string): string | undefined {
  const addresses = networkInterfaces()[networkInterface] ?? [];
  return (addresses.find(({ family }) => family === 'IPv4') ?? addresses[0])?.address;
}

/** The interface that has an address. */
export function interfaceOf(address: string): string | undefined {
  return Object.entries(networkInterfaces()).find(([, addresses]) =>
    addresses?.some((one) => one.address === address),
  )?.[0];
}
