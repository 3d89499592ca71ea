/** @file Times and memory with their units: the page counts in milliseconds and GB (10^9 bytes). */
import { quantity } from '@pipewright/schedule';

/** A time. @example showTime(0.0125) // '12.5 µs' */
export function showTime(ms: number): string {
  return ms !== 0 && Math.abs(ms) < 0.1 ? `${quantity(ms * 1000)} µs` : `${quantity(ms)} ms`;
}

/** An amount of memory. @example showMemory(0.0125) // '12.5 MB' */
export function showMemory(gigabytes: number): string {
  const size = Math.abs(gigabytes);
  if (size === 0 || size >= 0.1) return `${quantity(gigabytes)} GB`;
  return size >= 1e-4 ? `${quantity(gigabytes * 1e3)} MB` : `${quantity(gigabytes * 1e6)} kB`;
}
