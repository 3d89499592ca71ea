/** @file Bytes as people write them. */

const units: Readonly<Record<string, number>> = {
  '': 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  KIB: 2 ** 10,
  MIB: 2 ** 20,
  GIB: 2 ** 30,
};

/** The number of bytes; null where the text says none. @example bytesOf('20GB') // 20e9 */
export function bytesOf(text: string): number | null {
  const [, digits, unit] = /^\s*([\d.]+(?:e\d+)?)\s*([KMG]i?B)?\s*$/i.exec(text) ?? [];
  const value = Number(digits) * (units[(unit ?? '').toUpperCase()] ?? Number.NaN);
  return value > 0 ? value : null;
}
