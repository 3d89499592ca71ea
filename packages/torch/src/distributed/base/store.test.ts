/** @file Stores: values, counters, waits, limits. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { fileStore, hashStore, type Store, tcpStore } from './store.ts';

const folder = mkdtempSync(join(tmpdir(), 'pipewright-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
let files = 0;

const secret = 'nobody else knows it';
const kinds: [string, () => { one: Store; other: Store }][] = [
  ['hash', () => ({ one: hashStore(`test-${files}`), other: hashStore(`test-${files++}`) })],
  ['file', () => ({ one: fileStore(join(folder, `f${files}`), 2), other: fileStore(join(folder, `f${files++}`), 2) })],
  [
    'tcp',
    () => {
      const one = tcpStore('127.0.0.1', 0, { server: true, timeoutMs: 60_000 });
      return { one, other: tcpStore('127.0.0.1', one.port, { timeoutMs: 60_000 }) };
    },
  ],
  [
    'tcp with a secret',
    () => {
      const one = tcpStore('127.0.0.1', 0, { server: true, secret, timeoutMs: 60_000 });
      return { one, other: tcpStore('127.0.0.1', one.port, { secret, timeoutMs: 60_000 }) };
    },
  ],
];

describe.each(kinds)('a %s store', (_name, make) => {
  test('shares values and counters', () => {
    const { one, other } = make();
    one.set('text', 'grün');
    one.set('bytes', new Uint8Array([0, 255, 7]));
    expect(other.getText('text')).toBe('grün');
    expect([...other.get('bytes')]).toEqual([0, 255, 7]);
    expect(one.add('n', 2)).toBe(2);
    expect(other.add('n', 40)).toBe(42);
    expect(other.check(['text', 'n'])).toBe(true);
    expect(other.check(['text', 'nothing'])).toBe(false);
    expect(one.compareSet('text', 'grün', 'blau')).toBe('blau');
    expect(other.compareSet('text', 'rot', 'gelb')).toBe('blau');
    expect(other.delete('text')).toBe(true);
    expect(one.size).toBeGreaterThanOrEqual(2);
    one.close();
    other.close();
    one.close();
  });

  test('prefixes keep users apart', () => {
    const { one, other } = make();
    const a = one.prefix('a');
    a.set('key', '1');
    other.prefix('b').set('key', '2');
    expect(other.prefix('a').getText('key')).toBe('1');
    expect(a.getText('key')).toBe('1');
  });

  test('a key that nobody sets is an error in time', () => {
    const { one } = make();
    const start = performance.now();
    expect(() => one.get('never', { timeoutMs: 120 })).toThrow(
      /^Store.get\('never'\): nobody set it within 120 ms in /,
    );
    expect(() => one.wait(['never', 'ever'], { timeoutMs: 120 })).toThrow(
      /^Store.wait\('never', 'ever'\): nobody set it within 120 ms in /,
    );
    expect(performance.now() - start).toBeLessThan(30_000);
    one.set('still', 'usable');
    expect(one.getText('still')).toBe('usable');
  });
});

test('hash stores are found by name', () => {
  const one = hashStore('by name');
  one.set('k', 'v');
  expect(hashStore('by name').getText('k')).toBe('v');
  expect(hashStore('another').check(['k'])).toBe(false);
});

test('a server that does not answer', () => {
  expect(() => tcpStore('127.0.0.1', 1, { timeoutMs: 300 })).toThrow(
    /^tcpStore: no store answered at 127\.0\.0\.1:1 within 300 ms; is the rank that serves it running\?/,
  );
});

test('a port that is in use', () => {
  const one = tcpStore('127.0.0.1', 0, { server: true });
  expect(one.description).toBe(`tcp://127.0.0.1:${one.port}`);
  one.close();
});

test('bad arguments say what to do', () => {
  expect(() => tcpStore('', 1)).toThrow("tcpStore: host is ''; give a name or an address");
  expect(() => tcpStore('x', 70_000)).toThrow('tcpStore: port is 70000; give a whole number from 0 to 65535');
  expect(() => tcpStore('x', 0)).toThrow('tcpStore: port 0 is for the server; give its port');
  expect(() => tcpStore('x', 1, { sever: true } as object)).toThrow("did you mean 'server'?");
  expect(() => fileStore('x', 0)).toThrow('fileStore: ranks is 0');
  expect(() => hashStore('')).toThrow('is not a key');
  const store = hashStore('closed');
  store.close();
  expect(() => store.set('a', 'b')).toThrow('the store hash:closed is closed');
  expect(() => hashStore('t').get('x', { timeoutMs: Number.NaN })).toThrow('timeoutMs is NaN');
});

describe('a store with a secret', () => {
  const serve = (ranks: number): Store =>
    tcpStore('127.0.0.1', 0, { server: true, secret, ranks, rank: 0, timeoutMs: 60_000 });
  const code = (body: () => unknown): unknown => {
    try {
      body();
    } catch (error) {
      return (error as { code?: unknown }).code;
    }
    return undefined;
  };

  test('refuses at once who has another secret, another number of ranks, or the place of another', () => {
    const store = serve(2);
    const limit = { timeoutMs: 3_600_000 };
    const join = (more: object) => () => tcpStore('127.0.0.1', store.port, { secret, ...limit, ...more });
    expect(join({ secret: 'something else, as long' })).toThrow(/belongs to another run: its secret is another one/);
    expect(join({ ranks: 4, rank: 3 })).toThrow(/this rank has a WORLD_SIZE of 4, rank 0 has 2/);
    expect(join({ ranks: 2, rank: 0 })).toThrow(/there is a rank 0 in this run already/);
    expect(code(join({ secret: 'something else, as long' }))).toBe('REFUSED');
    const other = join({ ranks: 2, rank: 1 })();
    other.set('key', 'value');
    expect(store.getText('key')).toBe('value');
    other.close();
    store.close();
  });

  test('and one without do not take each other for their own', () => {
    const plain = tcpStore('127.0.0.1', 0, { server: true, timeoutMs: 60_000 });
    expect(code(() => tcpStore('127.0.0.1', plain.port, { secret, timeoutMs: 1000 }))).toMatch(/REFUSED|TIMED_OUT/);
    plain.close();
  });

  test.each([
    [{ secret: 'short' }, /the secret has 5 characters; give at least 16/],
    [{ secret: 7 }, /the secret is a number/],
    [{ rank: 2, ranks: 2 }, /rank is 2 and ranks 2/],
    [{ ranks: 0 }, /ranks is 0; give how many use the store/],
    [{ listen: '' }, /listen is ''; give an address/],
  ])('options %j', (options, message) => {
    expect(() => tcpStore('127.0.0.1', 1, options as object)).toThrow(message);
  });

  test('holds large values, and refuses what is too large', () => {
    const store = serve(1);
    const large = new Uint8Array(3 << 20).map((_, i) => i % 251);
    store.set('large', large);
    expect(Buffer.compare(store.get('large'), large)).toBe(0);
    expect(() => store.set('too large', new Uint8Array(17 << 20))).toThrow(/at most 16 MiB/);
    store.set('text', 'no number');
    expect(() => store.add('text', 1)).toThrow(/not a number/);
    expect(store.add('sum', 2 ** 40)).toBe(2 ** 40);
    store.close();
  });
});

test('a store is served at the address it is asked for, which must be one of this machine', () => {
  expect(() => tcpStore('192.0.2.1', 0, { server: true, timeoutMs: 1000 })).toThrow(
    /192\.0\.2\.1 is not an address of this machine/,
  );
  const store = tcpStore('127.0.0.2', 0, { server: true, timeoutMs: 60_000 });
  const { port } = store;
  // On all addresses, the port would be taken.
  const other = tcpStore('127.0.0.3', port, { server: true, secret, timeoutMs: 60_000 });
  store.set('key', 'two');
  expect(other.check(['key'])).toBe(false);
  other.close();
  store.close();
});
