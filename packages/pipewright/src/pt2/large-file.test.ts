/** @file A file larger than memory should hold at once: opening it reads the program, not the weights. */
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { crc32 } from 'node:zlib';
import { afterAll, expect, it } from 'vitest';
import { readZip } from '../../testing/zip-writer.mjs';
import { loadPt2 } from '../index.ts';

const folder = mkdtempSync(join(tmpdir(), 'pipewright-large-'));
afterAll(() => rmSync(folder, { recursive: true }));

type Json = ReturnType<typeof JSON.parse>;

/** mlp.pt2 with a bias of 6 GiB of zeros, written with holes and with 64-bit sizes: it takes hardly any disk. */
function writeLarge(path: string, size: number): void {
  const file = openSync(path, 'w');
  let at = 0;
  const directory: Buffer[] = [];
  const write = (bytes: Uint8Array): void => {
    writeSync(file, bytes, 0, bytes.length, at);
    at += bytes.length;
  };
  const source = fileURLToPath(new URL('../../../../testdata/models/mlp.pt2', import.meta.url));
  for (const { name, bytes } of readZip(source)) {
    let content = Buffer.from(bytes);
    let isLarge = false;
    if (name.endsWith('weights_config.json')) {
      const json: Json = JSON.parse(content.toString('utf8'));
      json.config['head.bias'].tensor_meta.storage_offset.as_int = size / 4 - 4;
      content = Buffer.from(JSON.stringify(json));
    }
    if (name.endsWith('/weight_17')) isLarge = true;
    const length = isLarge ? size : content.length;
    const nameBytes = Buffer.from(name);
    const padding = (64 - ((at + 30 + nameBytes.length) % 64)) % 64;
    const local = Buffer.alloc(30 + nameBytes.length + padding);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(nameBytes.length, 26);
    local.writeUInt16LE(padding, 28);
    nameBytes.copy(local, 30);
    const central = Buffer.alloc(46 + nameBytes.length + 28);
    central.writeUInt32LE(0x02014b50, 0);
    central.writeUInt32LE(isLarge ? 0 : crc32(content), 16);
    central.writeUInt32LE(0xffffffff, 20);
    central.writeUInt32LE(0xffffffff, 24);
    central.writeUInt16LE(nameBytes.length, 28);
    central.writeUInt16LE(28, 30);
    central.writeUInt32LE(0xffffffff, 42);
    nameBytes.copy(central, 46);
    central.writeUInt16LE(1, 46 + nameBytes.length);
    central.writeUInt16LE(24, 48 + nameBytes.length);
    central.writeBigUInt64LE(BigInt(length), 50 + nameBytes.length);
    central.writeBigUInt64LE(BigInt(length), 58 + nameBytes.length);
    central.writeBigUInt64LE(BigInt(at), 66 + nameBytes.length);
    directory.push(central);
    write(local);
    if (isLarge) at += size;
    else write(content);
  }
  const start = at;
  for (const central of directory) write(central);
  const place = at;
  const end = Buffer.alloc(56 + 20 + 22);
  end.writeUInt32LE(0x06064b50, 0);
  end.writeBigUInt64LE(BigInt(directory.length), 32);
  end.writeBigUInt64LE(BigInt(place - start), 40);
  end.writeBigUInt64LE(BigInt(start), 48);
  end.writeUInt32LE(0x07064b50, 56);
  end.writeBigUInt64LE(BigInt(place), 64);
  end.writeUInt32LE(0x06054b50, 76);
  end.writeUInt16LE(0xffff, 86);
  end.writeUInt32LE(0xffffffff, 88);
  end.writeUInt32LE(0xffffffff, 92);
  write(end);
  ftruncateSync(file, at);
  closeSync(file);
}

it('6 GiB are mapped, not read', () => {
  const path = join(folder, 'large.pt2');
  writeLarge(path, 6 * 2 ** 30);
  const before = process.memoryUsage().rss;
  const model = loadPt2(path);
  expect(process.memoryUsage().rss - before).toBeLessThan(512 * 2 ** 20);
  expect(model.getParameter('head.bias').toArray()).toEqual([0, 0, 0, 0]);
  model.dispose();
});
