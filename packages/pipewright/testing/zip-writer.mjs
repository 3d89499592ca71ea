// @ts-check
/** @file Writes zip files with stored entries, sound or spoilt on purpose: what the mutations of fuzz-pt2.mjs need. */
import { readFileSync } from 'node:fs';
import { crc32 } from 'node:zlib';

/**
 * An entry. What is set besides name and bytes is written as it is, whether true or not.
 * @typedef {{ name: string, bytes: Uint8Array, crc?: number, size?: number, offset?: number, method?: number, flags?: number, localName?: string }} Entry
 */

/** The entries of a sound file. @param {string} path @returns {Entry[]} */
export function readZip(path) {
  const file = readFileSync(path);
  const end = file.lastIndexOf(Buffer.from([0x50, 0x4b, 5, 6]));
  let at = file.readUInt32LE(end + 16);
  return Array.from({ length: file.readUInt16LE(end + 10) }, () => {
    const [size, nameLength] = [file.readUInt32LE(at + 24), file.readUInt16LE(at + 28)];
    const [extra, comment, local] = [
      file.readUInt16LE(at + 30),
      file.readUInt16LE(at + 32),
      file.readUInt32LE(at + 42),
    ];
    const name = file.toString('utf8', at + 46, at + 46 + nameLength);
    at += 46 + nameLength + extra + comment;
    const start = local + 30 + file.readUInt16LE(local + 26) + file.readUInt16LE(local + 28);
    return { name, bytes: file.subarray(start, start + size) };
  });
}

/** @param {Entry[]} entries @param {{ comment?: string, count?: number, start?: number }} [end] */
export function writeZip(entries, end = {}) {
  /** @type {Buffer[]} */
  const parts = [];
  /** @type {Buffer[]} */
  const directory = [];
  let at = 0;
  const push = (/** @type {Uint8Array} */ part) => {
    parts.push(Buffer.from(part));
    at += part.length;
  };
  for (const entry of entries) {
    const { bytes, method = 0, flags = 0x800, crc = crc32(bytes), size = bytes.length } = entry;
    const [name, localName] = [Buffer.from(entry.name), Buffer.from(entry.localName ?? entry.name)];
    const padding = (64 - ((at + 34 + localName.length) % 64)) % 64;
    const local = Buffer.alloc(34 + localName.length + padding);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(flags, 6);
    local.writeUInt16LE(method, 8);
    local.writeUInt16LE(localName.length, 26);
    local.writeUInt16LE(4 + padding, 28);
    localName.copy(local, 30);
    local.writeUInt16LE(0x4246, 30 + localName.length);
    local.writeUInt16LE(padding, 32 + localName.length);
    const central = Buffer.alloc(46 + name.length);
    central.writeUInt32LE(0x02014b50, 0);
    central.writeUInt16LE(flags, 8);
    central.writeUInt16LE(method, 10);
    central.writeUInt32LE(crc >>> 0, 16);
    central.writeUInt32LE(size >>> 0, 20);
    central.writeUInt32LE(size >>> 0, 24);
    central.writeUInt16LE(name.length, 28);
    central.writeUInt32LE((entry.offset ?? at) >>> 0, 42);
    name.copy(central, 46);
    directory.push(central);
    push(local);
    push(bytes);
  }
  const start = at;
  for (const central of directory) push(central);
  const comment = Buffer.from(end.comment ?? '');
  const record = Buffer.alloc(22 + comment.length);
  record.writeUInt32LE(0x06054b50, 0);
  record.writeUInt16LE((end.count ?? entries.length) & 0xffff, 8);
  record.writeUInt16LE((end.count ?? entries.length) & 0xffff, 10);
  record.writeUInt32LE(at - start, 12);
  record.writeUInt32LE((end.start ?? start) >>> 0, 16);
  record.writeUInt16LE(comment.length, 20);
  comment.copy(record, 22);
  push(record);
  return Buffer.concat(parts);
}
