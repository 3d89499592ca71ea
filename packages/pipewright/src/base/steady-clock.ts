/** @file A clock that nobody sets: the same for all processes of a machine, and it never jumps. */

/** Milliseconds since some moment before this machine's programs began. */
export function steadyMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
