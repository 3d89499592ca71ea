/** @file CRC-32 as zip files have it. */

const table = makeTable();

function makeTable(): Int32Array {
  const values = new Int32Array(256);
  for (let n = 0; n < 256; n++) {
    let value = n;
    for (let k = 0; k < 8; k++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
    values[n] = value;
  }
  return values;
}

/** The checksum of bytes; `before` is that of the bytes before them. @example crc32(bytes) */
export function crc32(bytes: Uint8Array, before = 0): number {
  let value = ~before;
  for (let i = 0; i < bytes.length; i++)
    value = (table[(value ^ (bytes[i] as number)) & 0xff] as number) ^ (value >>> 8);
  return ~value >>> 0;
}
