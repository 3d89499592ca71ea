/** @file A clock that is never adjusted: it is the same for all processes of a machine, and never jumps. */

/** Milliseconds since some moment before this machine's programs began. */
export function steadyMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
