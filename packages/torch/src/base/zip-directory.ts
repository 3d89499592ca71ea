/**
 * @file The directory of a zip file, read from bytes: where it lies, and its records one by one. It opens no file and throws no
 * error: who reads knows what the file is for and what to say where it is damaged.
 */

/** Where the directory of a zip file lies, and how many records it has. */
export interface ZipDirectory {
  readonly offset: number;
  readonly size: number;
  readonly count: number;
}

/** What the end of a zip file tells: its directory, or the place of the 64-bit record that does. */
export interface ZipEnd extends ZipDirectory {
  /** Where the end record itself lies. */
  readonly at: number;
  readonly disk: number;
  readonly end64: number | undefined;
}

/** One record of the directory. */
export interface ZipRecord {
  readonly name: Uint8Array;
  readonly flags: number;
  readonly method: number;
  readonly crc: number;
  /** Undefined where they need 64 bits and the record does not have them. */
  readonly sizes: ZipSizes | undefined;
  /** Of the record itself: the next one begins after it. */
  readonly length: number;
}

/** How large an entry is, and where its header begins. */
export interface ZipSizes {
  readonly size: number;
  readonly packed: number;
  readonly header: number;
}

const END = 0x06054b50;
const END64 = 0x06064b50;
const LOCATOR64 = 0x07064b50;
const CENTRAL = 0x02014b50;
const LOCAL = 0x04034b50;
const END_SIZE = 22;
const LOCATOR64_SIZE = 20;
const CENTRAL_SIZE = 46;
const LIMIT32 = 0xffffffff;
const SIZES64 = 1;

/** How many bytes at the end of a file are searched for the end record: itself and the longest comment. */
export const ZIP_TAIL: number = END_SIZE + 0xffff;
/** Bytes of the 64-bit end record. */
export const ZIP_END64_SIZE = 56;
/** Bytes of the header before an entry, without its names. */
export const ZIP_HEADER_SIZE = 30;

/** The end record in the last bytes of a file, which begin at `start`; undefined where there is none. */
export function findZipEnd(tail: Uint8Array, start: number): ZipEnd | undefined {
  const view = viewOf(tail);
  let at = tail.length - END_SIZE;
  while (at >= 0 && view.getUint32(at, true) !== END) at--;
  if (at < 0) return undefined;
  const locator = at - LOCATOR64_SIZE;
  const wide = locator >= 0 && view.getUint32(locator, true) === LOCATOR64;
  return {
    at: start + at,
    disk: view.getUint16(at + 4, true),
    count: view.getUint16(at + 10, true),
    size: view.getUint32(at + 12, true),
    offset: view.getUint32(at + 16, true),
    end64: wide ? Number(view.getBigUint64(locator + 8, true)) : undefined,
  };
}

/** The directory by the 64-bit end record; undefined where these bytes are none. */
export function readZipEnd64(bytes: Uint8Array): ZipDirectory | undefined {
  const view = viewOf(bytes);
  if (bytes.length < ZIP_END64_SIZE || view.getUint32(0, true) !== END64) return undefined;
  const wide = (at: number): number => Number(view.getBigUint64(at, true));
  return { count: wide(32), size: wide(40), offset: wide(48) };
}

/** The record at a place of the directory; undefined where it is damaged. */
export function readZipRecord(directory: Uint8Array, at: number): ZipRecord | undefined {
  const view = viewOf(directory);
  if (at + CENTRAL_SIZE > directory.length || view.getUint32(at, true) !== CENTRAL) return undefined;
  const nameLength = view.getUint16(at + 28, true);
  const extraLength = view.getUint16(at + 30, true);
  const length = CENTRAL_SIZE + nameLength + extraLength + view.getUint16(at + 32, true);
  if (at + length > directory.length) return undefined;
  const extra = at + CENTRAL_SIZE + nameLength;
  return {
    name: directory.subarray(at + CENTRAL_SIZE, extra),
    flags: view.getUint16(at + 8, true),
    method: view.getUint16(at + 10, true),
    crc: view.getUint32(at + 16, true),
    sizes: readSizes(view, at, viewOf(directory.subarray(extra, extra + extraLength))),
    length,
  };
}

/** How far behind the beginning of its header an entry's bytes begin, and how they are packed; undefined where there is no header. */
export function readZipHeader(header: Uint8Array): { readonly length: number; readonly method: number } | undefined {
  const view = viewOf(header);
  if (header.length < ZIP_HEADER_SIZE || view.getUint32(0, true) !== LOCAL) return undefined;
  return {
    length: ZIP_HEADER_SIZE + view.getUint16(26, true) + view.getUint16(28, true),
    method: view.getUint16(8, true),
  };
}

/** The sizes of the record at `at`, from its 64-bit field where they do not fit into 32 bits. */
function readSizes(view: DataView, at: number, extra: DataView): ZipSizes | undefined {
  const size = view.getUint32(at + 24, true);
  const packed = view.getUint32(at + 20, true);
  const header = view.getUint32(at + 42, true);
  const lacking = [size, packed, header].filter((value) => value === LIMIT32).length;
  if (lacking === 0) return { size, packed, header };
  for (let field = 0; field + 4 <= extra.byteLength; field += 4 + extra.getUint16(field + 2, true)) {
    if (extra.getUint16(field, true) !== SIZES64) continue;
    const end = Math.min(field + 4 + extra.getUint16(field + 2, true), extra.byteLength);
    let next = field + 4;
    if (next + 8 * lacking > end) return undefined;
    const wide = (value: number): number => {
      if (value !== LIMIT32) return value;
      next += 8;
      return Number(extra.getBigUint64(next - 8, true));
    };
    return { size: wide(size), packed: wide(packed), header: wide(header) };
  }
  return undefined;
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
