import { expect, test } from 'vitest';
import { findZipEnd, readZipEnd64, readZipHeader, readZipRecord } from './zip-directory.ts';

/** A record for `a.txt`, whose sizes stand in 32 bits unless that is too little; `wide` are those of the 64-bit field. */
function record(sizes: readonly [number, number, number], wide: readonly bigint[] = []): Buffer {
  const bytes = Buffer.alloc(46 + 5 + 8 + (wide.length === 0 ? 0 : 4 + 8 * wide.length));
  bytes.writeUInt32LE(0x02014b50, 0);
  bytes.writeUInt16LE(8, 10);
  bytes.writeUInt32LE(0xdecade, 16);
  [24, 20, 42].forEach((at, i) => bytes.writeUInt32LE(sizes[i] as number, at));
  bytes.writeUInt16LE(5, 28);
  bytes.writeUInt16LE(bytes.length - 51, 30);
  bytes.write('a.txt', 46);
  bytes.writeUInt16LE(0x5455, 51); // another field comes first
  bytes.writeUInt16LE(4, 53);
  if (wide.length > 0) {
    bytes.writeUInt16LE(1, 59);
    bytes.writeUInt16LE(8 * wide.length, 61);
    wide.forEach((value, i) => bytes.writeBigUInt64LE(value, 63 + 8 * i));
  }
  return bytes;
}

const WIDE = 0xffffffff;

test('a record: name, packing, checksum, sizes', () => {
  const bytes = Buffer.concat([Buffer.from('before'), record([7, 5, 99])]);
  expect(readZipRecord(bytes, 6)).toEqual({
    name: Buffer.from('a.txt'),
    flags: 0,
    method: 8,
    crc: 0xdecade,
    sizes: { size: 7, packed: 5, header: 99 },
    length: 59,
  });
  expect(readZipRecord(bytes, 5), 'no record begins here').toBeUndefined();
  expect(readZipRecord(bytes.subarray(0, -1), 6), 'cut short').toBeUndefined();
});

test('sizes of more than 4 GiB stand in a field of their own, in their order and only those', () => {
  const large = 6n * 2n ** 30n;
  expect(readZipRecord(record([WIDE, WIDE, 99], [large, large + 1n]), 0)?.sizes).toEqual({
    size: Number(large),
    packed: Number(large) + 1,
    header: 99,
  });
  expect(readZipRecord(record([7, 5, WIDE], [large]), 0)?.sizes).toEqual({ size: 7, packed: 5, header: Number(large) });
  expect(readZipRecord(record([WIDE, WIDE, 99], [large]), 0)?.sizes, 'one is lacking').toBeUndefined();
  expect(readZipRecord(record([WIDE, 5, 99]), 0)?.sizes, 'no such field').toBeUndefined();
});

test('the end, with a comment, and with a 64-bit one', () => {
  const end = Buffer.alloc(22 + 7);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(3, 10);
  end.writeUInt32LE(120, 12);
  end.writeUInt32LE(400, 16);
  end.write('comment', 22);
  const plain = { at: 520, disk: 0, count: 3, size: 120, offset: 400, end64: undefined };
  expect(findZipEnd(end, 520)).toEqual(plain);
  const locator = Buffer.alloc(20);
  locator.writeUInt32LE(0x07064b50, 0);
  locator.writeBigUInt64LE(520n, 8);
  expect(findZipEnd(Buffer.concat([locator, end]), 576)).toEqual({ ...plain, at: 596, end64: 520 });
  expect(findZipEnd(end.subarray(1), 0)).toBeUndefined();
  const end64 = Buffer.alloc(56);
  end64.writeUInt32LE(0x06064b50, 0);
  [3n, 120n, 2n ** 33n].forEach((value, i) => end64.writeBigUInt64LE(value, 32 + 8 * i));
  expect(readZipEnd64(end64)).toEqual({ count: 3, size: 120, offset: 2 ** 33 });
  expect(readZipEnd64(end64.subarray(0, 55))).toBeUndefined();
  expect(readZipEnd64(end)).toBeUndefined();
});

test('the header before an entry', () => {
  const header = Buffer.alloc(30);
  header.writeUInt32LE(0x04034b50, 0);
  header.writeUInt16LE(8, 8);
  header.writeUInt16LE(5, 26);
  header.writeUInt16LE(11, 28);
  expect(readZipHeader(header)).toEqual({ length: 46, method: 8 });
  expect(readZipHeader(header.subarray(0, 29))).toBeUndefined();
  expect(readZipHeader(Buffer.alloc(30))).toBeUndefined();
});
