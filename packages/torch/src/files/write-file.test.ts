import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { makeDevice, makeFifo, mountSmallDisk } from '../../testing/special-files.ts';
import { ones, saveSafetensors, TorchError } from '../index.ts';
import { checkWritable, makeFolder, writeFile } from './write-file.ts';

const root = mkdtempSync(join(tmpdir(), 'pipewright-write-'));
const devices = { null: makeDevice(root, 'null'), full: makeDevice(root, 'full') };
const disk = mountSmallDisk();
afterAll(() => {
  disk?.unmount();
  rmSync(root, { recursive: true });
});

let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(root, 'case-'));
});
const file = (name: string): string => join(folder, name);
const read = (name: string): string => readFileSync(file(name), 'utf8');

/** The message of the refusal. */
function refusal(body: () => void): string {
  try {
    body();
  } catch (error) {
    expect(error).toBeInstanceOf(TorchError);
    expect((error as TorchError).code).toBe('CANNOT_WRITE');
    return (error as Error).message;
  }
  throw new Error('nothing was refused');
}

describe('writeFile', () => {
  test('makes a new file, and replaces an old one with its rights', () => {
    writeFile(file('a'), 'one');
    expect(read('a')).toBe('one');
    chmodSync(file('a'), 0o640);
    const before = statSync(file('a')).ino;
    writeFile(file('a'), new TextEncoder().encode('two'));
    expect(read('a')).toBe('two');
    expect(statSync(file('a')).mode & 0o777).toBe(0o640);
    expect(statSync(file('a')).ino).not.toBe(before);
    expect(readdirSync(folder)).toEqual(['a']);
  });

  test('leaves the old file when the content fails', () => {
    writeFile(file('a'), 'old');
    expect(
      refusal(() =>
        writeFile(file('a'), () => {
          throw new Error('no content');
        }),
      ),
    ).toBe(`cannot write ${file('a')}: no content`);
    expect(read('a')).toBe('old');
    expect(readdirSync(folder)).toEqual(['a']);
  });

  test('follows links: the link stays, the file behind it is written', () => {
    mkdirSync(file('runs'));
    writeFileSync(file('runs/one.json'), 'old');
    symlinkSync('runs/one.json', file('latest'));
    symlinkSync('latest', file('again'));
    writeFile(file('again'), 'new');
    expect([readlinkSync(file('again')), readlinkSync(file('latest')), read('runs/one.json')]).toEqual([
      'latest',
      'runs/one.json',
      'new',
    ]);
    symlinkSync('runs/two.json', file('dangling'));
    writeFile(file('dangling'), 'made');
    expect([lstatSync(file('dangling')).isSymbolicLink(), read('runs/two.json')]).toEqual([true, 'made']);
    symlinkSync('round', file('round'));
    expect(refusal(() => writeFile(file('round'), ''))).toContain('its links go round in a cycle');
  });

  test('writes hard links in place, so that all names see it', () => {
    writeFileSync(file('a'), 'old and longer');
    linkSync(file('a'), file('b'));
    writeFile(file('a'), 'new');
    expect([read('a'), read('b'), statSync(file('a')).nlink]).toEqual(['new', 'new', 2]);
  });

  test.skipIf(devices.null === null)('a device stays a device', () => {
    writeFile(devices.null!, 'gone');
    expect(lstatSync(devices.null!).isCharacterDevice()).toBe(true);
  });

  test.skipIf(devices.full === null)('a device that is full says so', () => {
    expect(refusal(() => writeFile(devices.full!, 'x'))).toContain('the disk is full');
    expect(lstatSync(devices.full!).isCharacterDevice()).toBe(true);
  });

  test('a pipe gets the text, more than it holds at once too', async () => {
    const pipe = makeFifo(folder);
    const reader = spawn('wc', ['-c', pipe]);
    let counted = '';
    reader.stdout.on('data', (data: Buffer) => (counted += data.toString()));
    writeFile(pipe, 'x'.repeat(300_000));
    await once(reader, 'close');
    expect(Number.parseInt(counted, 10)).toBe(300_000);
    expect(lstatSync(pipe).isFIFO()).toBe(true);
  });

  test.skipIf(disk === null)('a full disk: the old file is still there, and nothing else', () => {
    const path = join(disk!.folder, 'a');
    writeFile(path, 'old');
    expect(refusal(() => writeFile(path, 'x'.repeat(200_000)))).toBe(`cannot write ${path}: the disk is full`);
    expect(refusal(() => saveSafetensors(path, { x: ones([50_000]) }))).toMatch(/: No space left on device$/);
    expect([readdirSync(disk!.folder), readFileSync(path, 'utf8')]).toEqual([['a'], 'old']);
    writeFileSync(join(disk!.folder, 'b'), 'x'.repeat(15 * 4096)); // the rest
    expect(refusal(() => checkWritable(path))).toBe(`cannot write ${path}: the disk is full`);
  });
});

test('checkWritable finds what would fail, and changes nothing', () => {
  checkWritable(file('new'));
  writeFileSync(file('old'), 'old');
  checkWritable(file('old'));
  expect(refusal(() => checkWritable(file('none/a')))).toBe(
    `cannot write ${file('none/a')}: there is no folder ${file('none')}; make it first`,
  );
  expect(refusal(() => checkWritable(file('old/a')))).toContain('is not a folder');
  expect(refusal(() => checkWritable(folder))).toContain('it is a folder; name a file in it');
  expect(read('old')).toBe('old');
  expect(readdirSync(folder)).toEqual(['old']);
});

describe('makeFolder', () => {
  test('makes the folders that are missing, and says which was the first', () => {
    expect(makeFolder(file('a/b/c'))).toBe(file('a'));
    expect(statSync(file('a/b/c')).isDirectory()).toBe(true);
    expect(makeFolder(file('a/b/c/'))).toBeUndefined();
    symlinkSync('a', file('link'));
    expect(makeFolder(file('link/d'))).toBe(file('link/d'));
    expect(readdirSync(file('a'))).toEqual(['b', 'd']);
  });

  test('refuses where something else is', () => {
    writeFileSync(file('a'), '');
    symlinkSync('none', file('dangling'));
    expect(refusal(() => makeFolder(file('a/b')))).toMatch(/^cannot make the folder .*\/a\/b: .* is not a folder$/);
    expect(refusal(() => makeFolder(file('a')))).toMatch(/^cannot make the folder .*\/a: .*\/a is not a folder$/);
    expect(refusal(() => makeFolder(file('dangling/b')))).toContain(`${file('dangling')} is not a folder`);
  });

  test.skipIf(process.platform !== 'linux')('refuses where the system lets nobody make one', () => {
    expect(refusal(() => makeFolder('/proc/none/at/all'))).toBe(
      'cannot make the folder /proc/none/at/all: nothing can be made in /proc; give another path',
    );
  });
});
