/** @file Wheels: read, unpacked and checked; a damaged one is found out and named. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { writeWheel, zip } from '../../../testing/fake-machine.ts';
import { parseRecord, Wheel } from './wheel.ts';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'wheel-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const files = {
  'a/small.txt': 'small',
  'a/empty.txt': '',
  'a/large.bin': 'large'.repeat(500_000),
  'a/stored.bin': 'x'.repeat(3e6),
};
const contents = { name: 'thing', version: '1.0', tag: 'py3-none-any', files };

test('every file comes out as it went in', async () => {
  const wheel = await Wheel.open(writeWheel(dir, contents));
  for (const [name, text] of Object.entries(files)) {
    let heard = 0;
    const target = join(dir, 'out', name);
    const { size } = await wheel.unpack(name, target, (count) => {
      heard += count;
    });
    expect(readFileSync(target, 'utf8')).toBe(text);
    expect([size, heard]).toEqual([text.length, text.length]);
  }
  await wheel.close();
});

test('a file that does not have its hash is refused by name', async () => {
  const wheel = await Wheel.open(writeWheel(dir, { ...contents, lieAbout: ['a/small.txt'] }));
  await expect(wheel.unpack('a/small.txt', join(dir, 'small'), () => {})).rejects.toMatchObject({
    code: 'WHEEL_CORRUPT',
    message: expect.stringMatching(/a\/small\.txt has SHA-256 \w{64}, but RECORD says \w{64}; delete it and run/),
  });
  await wheel.close();
});

test('bytes damaged in the middle are refused, small and large', async () => {
  const path = writeWheel(dir, contents);
  const bytes = readFileSync(path);
  for (const name of ['a/small.txt', 'a/large.bin', 'a/stored.bin']) {
    const damaged = Buffer.from(bytes);
    const start = damaged.indexOf(name) + name.length;
    damaged.fill(0xff, start + 2, start + 6);
    writeFileSync(path, damaged);
    const wheel = await Wheel.open(path);
    await expect(wheel.unpack(name, join(dir, 'out'), () => {})).rejects.toMatchObject({ code: 'WHEEL_CORRUPT' });
    await wheel.close();
  }
});

test('a file that was cut short, and one that is no zip at all', async () => {
  const path = writeWheel(dir, contents);
  const bytes = readFileSync(path);
  for (const length of [0, 10, 1000, bytes.length - 30, bytes.length - 1]) {
    writeFileSync(path, bytes.subarray(0, length));
    await expect(Wheel.open(path)).rejects.toMatchObject({ code: 'WHEEL_CORRUPT' });
  }
});

test('an entry that points outside is refused', async () => {
  const path = join(dir, 'evil.whl');
  writeFileSync(path, zip({ 'a/../../outside': 'x' }));
  await expect(Wheel.open(path)).rejects.toThrow('"a/../../outside" points outside');
});

test('RECORD with quoted names and lines without hash', () => {
  const record = parseRecord(
    'a.py,sha256=AAAA,3\r\n"with ""quotes"", and commas.py",sha256=____,4\nx.dist-info/RECORD,,\n',
  );
  expect([...record]).toEqual([
    ['a.py', { sha256: '000000', size: 3 }],
    ['with "quotes", and commas.py', { sha256: 'ffffff', size: 4 }],
  ]);
});
