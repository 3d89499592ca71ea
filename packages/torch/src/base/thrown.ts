/** @file Whatever was thrown, read with care: it need not be an error, and its fields may throw themselves. */
import { inspect } from 'node:util';

/** What can be told of it, in a form that travels between threads and processes. */
export interface Thrown {
  readonly name: string;
  readonly message: string;
  readonly code?: string;
  readonly stack?: string;
}

/** What was thrown, as texts. Never throws. @example packThrown(new RangeError('too many')).name // 'RangeError' */
export function packThrown(thrown: unknown): Thrown {
  if (!isError(thrown)) return { name: 'Error', message: textOf(thrown) };
  const stack = field(thrown, 'stack');
  const code = field(thrown, 'code');
  return {
    name: field(thrown, 'name') ?? 'Error',
    message: field(thrown, 'message') ?? 'an error whose message cannot be read',
    ...(code === undefined ? {} : { code }),
    ...(stack === undefined ? {} : { stack }),
  };
}

/** The first error of a chain of causes; of a chain that leads back to itself, the last one that is new. */
export function firstCause(thrown: unknown): unknown {
  const seen = new Set<unknown>();
  let first = thrown;
  for (;;) {
    seen.add(first);
    const next = isError(first) ? read(first, 'cause') : undefined;
    if (!isError(next) || seen.has(next)) return first;
    first = next;
  }
}

function isError(value: unknown): value is Error {
  try {
    return value instanceof Error;
  } catch {
    return false;
  }
}

function read(from: object, name: string): unknown {
  try {
    return (from as Readonly<Record<string, unknown>>)[name];
  } catch {
    return undefined;
  }
}

function field(from: object, name: string): string | undefined {
  const value = read(from, name);
  return typeof value === 'string' ? value : undefined;
}

function textOf(value: unknown): string {
  try {
    const text = String(value);
    return text === '[object Object]' ? inspect(value, { depth: 1, breakLength: Infinity, compact: true }) : text;
  } catch {
    return 'something that cannot be shown was thrown';
  }
}
