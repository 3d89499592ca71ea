/**
 * @file JSON with the path to each value, so that an error says where. Integers beyond 2^53, which are common (the open end
 * of a slice is 2^63 - 1), keep all digits.
 */
import { pt2Error, shown } from './pt2-error.ts';

/** How deep a JSON text may be nested. */
const deepest = 256;

/** Parses a JSON text; integers of 16 and more digits become strings of digits. */
export function parseJson(path: string, entry: string, bytes: Uint8Array): JsonCursor {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (error) {
    throw pt2Error('JSON', path, `${entry} is not UTF-8`, error);
  }
  const exact = /\d{16}/.test(text)
    ? text.replaceAll(/"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g, (part) =>
        part.startsWith('"') ? part : `"${part}"`,
      )
    : text;
  let value: unknown;
  try {
    value = JSON.parse(exact);
  } catch (error) {
    throw pt2Error(
      'JSON',
      path,
      `${entry} is not JSON (${error instanceof Error ? error.message : String(error)})`,
      error,
    );
  }
  if (isTooDeep(value)) throw pt2Error('JSON', path, `${entry} is nested deeper than ${deepest}`);
  return new JsonCursor(value, path, entry);
}

function isTooDeep(value: unknown): boolean {
  let level: unknown[] = [value];
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > deepest) return true;
    const next: unknown[] = [];
    for (const item of level) {
      if (typeof item !== 'object' || item === null) continue;
      for (const inner of Object.values(item)) if (typeof inner === 'object' && inner !== null) next.push(inner);
    }
    level = next;
  }
  return false;
}

/** A value in a JSON document, with its place. */
export class JsonCursor {
  readonly value: unknown;
  readonly file: string;
  readonly place: string;

  constructor(value: unknown, file: string, place: string) {
    this.value = value;
    this.file = file;
    this.place = place;
  }

  /** The error that the value is not what it should be. */
  wrong(message: string): Error {
    return pt2Error('JSON', this.file, `${this.place}: ${message}`);
  }

  private at(key: string | number, value: unknown): JsonCursor {
    return new JsonCursor(value, this.file, `${this.place}${typeof key === 'number' ? `[${key}]` : `.${key}`}`);
  }

  private record(): Readonly<Record<string, unknown>> {
    if (typeof this.value !== 'object' || this.value === null || Array.isArray(this.value))
      throw this.wrong('an object is expected');
    return this.value as Record<string, unknown>;
  }

  /** A field that must be there. */
  get(key: string): JsonCursor {
    const record = this.record();
    if (!Object.hasOwn(record, key)) throw this.wrong(`field '${key}' is missing`);
    return this.at(key, record[key]);
  }

  /** A field that may be missing or null. */
  find(key: string): JsonCursor | undefined {
    const record = this.record();
    if (!Object.hasOwn(record, key) || record[key] === null) return undefined;
    return this.at(key, record[key]);
  }

  /** The fields of a map. */
  entries(): [string, JsonCursor][] {
    return Object.entries(this.record()).map(([key, value]) => [key, this.at(key, value)]);
  }

  /** The elements of a list. */
  list(): JsonCursor[] {
    if (!Array.isArray(this.value)) throw this.wrong('a list is expected');
    return this.value.map((value, i) => this.at(i, value));
  }

  /** The one field of a union, with its name. */
  union(): [tag: string, value: JsonCursor] {
    const record = this.record();
    const keys = Object.keys(record);
    if (keys.length !== 1) throw this.wrong(`one of several kinds is expected, got ${shown(keys.join(', '))}`);
    const [tag] = keys as [string];
    return [tag, this.at(tag, record[tag])];
  }

  text(): string {
    if (typeof this.value !== 'string') throw this.wrong('a string is expected');
    return this.value;
  }

  bool(): boolean {
    if (typeof this.value !== 'boolean') throw this.wrong('true or false is expected');
    return this.value;
  }

  /** A whole number that a number holds exactly. */
  int(): number {
    const { value } = this;
    const number = typeof value === 'string' && /^-?\d{16}$/.test(value) ? Number(value) : value;
    if (!Number.isSafeInteger(number)) throw this.wrong(`a whole number is expected, got ${this.print()}`);
    return number as number;
  }

  /** A whole number of 64 bits. */
  bigInt(): bigint {
    const { value } = this;
    if (Number.isSafeInteger(value)) return BigInt(value as number);
    if (typeof value === 'string' && /^-?\d{16,20}$/.test(value)) {
      const exact = BigInt(value);
      if (exact === BigInt.asIntN(64, exact)) return exact;
    }
    throw this.wrong(`a whole number of 64 bits is expected, got ${this.print()}`);
  }

  /** A number; infinities and NaN are written as strings. */
  float(): number {
    const { value } = this;
    if (typeof value === 'number') return value;
    if (value === 'Infinity') return Number.POSITIVE_INFINITY;
    if (value === '-Infinity') return Number.NEGATIVE_INFINITY;
    if (value === 'NaN') return Number.NaN;
    if (typeof value === 'string' && /^-?\d{16,}$/.test(value)) return Number(value);
    throw this.wrong(`a number is expected, got ${this.print()}`);
  }

  private print(): string {
    return shown(JSON.stringify(this.value) ?? 'nothing');
  }
}
