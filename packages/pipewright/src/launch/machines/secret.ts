/** @file The secret that the launchers of a run share, and proofs that a launcher knows it, which do not reveal it. */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { chmodSync, linkSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { PipelineError } from '../../base/errors.ts';
import { steadyMs } from '../../base/steady-clock.ts';

/** The shortest secret that is accepted. */
const SHORTEST = 16;
const RETRY_MS = 200;

/** A new secret, or any other random number that cannot be guessed. */
export function makeSecret(): string {
  return randomBytes(32).toString('base64url');
}

/** A proof that the sender knows the secret, for these values only. */
export function proofOf(secret: string, ...values: readonly (string | number)[]): string {
  return createHmac('sha256', secret).update(JSON.stringify(values)).digest('base64url');
}

/** Compares two proofs in constant time. */
export function isProof(got: unknown, expected: string): boolean {
  return (
    typeof got === 'string' &&
    got.length === expected.length &&
    timingSafeEqual(Buffer.from(got), Buffer.from(expected))
  );
}

/** Signs the messages of one direction of a connection, each with its number. */
export class Seal {
  private readonly key: string;
  private count = 0;

  constructor(key: string) {
    this.key = key;
  }

  /** The signature of the next message. */
  sign(text: string): string {
    return proofOf(this.key, this.count++, text);
  }
}

/** Refuses a secret that is short enough to be guessed. */
export function checkSecret(secret: unknown): string {
  if (typeof secret === 'string' && secret.length >= SHORTEST) return secret;
  const got = typeof secret === 'string' ? `has ${secret.length} characters` : `is a ${typeof secret}`;
  throw new PipelineError(
    'BAD_OPTION',
    `launch: the secret ${got}; give at least ${SHORTEST}, at random, the same on all machines`,
  );
}

/** The secret in a file. Machine 0 makes the file where there is none; the others wait for it. */
export async function secretFromFile(file: string, isFirst: boolean, limitMs: number): Promise<string> {
  const deadline = steadyMs() + limitMs;
  if (isFirst && statSync(file, { throwIfNoEntry: false }) === undefined) writeSecret(file);
  for (;;) {
    const found = statSync(file, { throwIfNoEntry: false });
    if (found !== undefined) {
      if ((found.mode & 0o077) !== 0)
        throw new PipelineError('BAD_OPTION', `launch: others can read the secret in ${file}; use: chmod 600 ${file}`);
      return checkSecret(readFileSync(file, 'utf8').trim());
    }
    if (steadyMs() >= deadline)
      throw new PipelineError(
        'TIMED_OUT',
        `launch: there was no secret in ${file} within ${limitMs} ms; machine 0 writes it when it starts, where the others must be able to read it`,
      );
    await new Promise((resolve) => setTimeout(resolve, Math.min(RETRY_MS, limitMs)));
  }
}

/** Writes the secret as a whole, readable for this user only. */
function writeSecret(file: string): void {
  const own = `${file}.${process.pid}`;
  try {
    writeFileSync(own, `${makeSecret()}\n`, { mode: 0o600, flag: 'wx' });
    chmodSync(own, 0o600);
    linkSync(own, file);
  } catch (error) {
    // Another launcher was first: its secret is used.
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return;
    throw new PipelineError('BAD_OPTION', `launch: cannot write the secret: ${(error as Error).message}`);
  } finally {
    rmSync(own, { force: true });
  }
}
