/** @file The secret in a file, and what is taken for one. */
import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { folder } from '../../../testing/launching/processes.ts';
import { checkSecret, isProof, makeSecret, proofOf, secretFromFile } from './secret.ts';

describe('a file', () => {
  test('is made by machine 0, for its user alone; the others wait for it', async () => {
    const file = join(folder, 'made.secret');
    const waiting = secretFromFile(file, false, 60_000);
    const made = await secretFromFile(file, true, 60_000);
    expect(made.length).toBeGreaterThanOrEqual(43);
    expect(await waiting).toBe(made);
    expect(readFileSync(file, 'utf8')).toBe(`${made}\n`);
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(readdirSync(folder).filter((name) => name.startsWith('made.secret'))).toEqual(['made.secret']);
    expect(await secretFromFile(file, true, 60_000)).toBe(made); // one that is there stays
  });

  test('that others can read, or with too little in it, is refused', async () => {
    const file = join(folder, 'open.secret');
    writeFileSync(file, 'a secret of many characters\n');
    chmodSync(file, 0o640);
    await expect(secretFromFile(file, false, 1)).rejects.toMatchObject({
      code: 'BAD_OPTION',
      message: `launch: others can read the secret in ${file}; use: chmod 600 ${file}`,
    });
    chmodSync(file, 0o600);
    expect(await secretFromFile(file, false, 1)).toBe('a secret of many characters');
    writeFileSync(file, 'too short\n');
    await expect(secretFromFile(file, false, 1)).rejects.toMatchObject({ code: 'BAD_OPTION' });
  });

  test('that never comes is not waited for for ever', async () => {
    const file = join(folder, 'none.secret');
    await expect(secretFromFile(file, false, 50)).rejects.toMatchObject({ code: 'TIMED_OUT' });
  });

  test('that cannot be written says why', async () => {
    await expect(secretFromFile(join(folder, 'no/such/folder'), true, 50)).rejects.toThrow(
      'launch: cannot write the secret: ENOENT',
    );
  });
});

test('a secret is at random, and what could be guessed is refused', () => {
  expect(new Set(Array.from({ length: 100 }, makeSecret)).size).toBe(100);
  expect(checkSecret('sixteen letters.')).toBe('sixteen letters.');
  for (const bad of ['fifteen letters', '', 3, null])
    expect(() => checkSecret(bad)).toThrow('give at least 16, at random, the same on all machines');
});

test('a proof is of one secret and of its values', () => {
  const proof = proofOf('one secret', 'a', 1);
  expect(isProof(proof, proofOf('one secret', 'a', 1))).toBe(true);
  for (const other of [proofOf('another secret', 'a', 1), proofOf('one secret', 'a', 2), proofOf('one secret', 'a,1')])
    expect(isProof(proof, other)).toBe(false);
  for (const other of [undefined, 3, '', `${proof}x`]) expect(isProof(other, proof)).toBe(false);
});
