/** @file The end of a process: what its ranks have sent still arrives, and the others learn that nothing follows. */

/** What is to be ended. */
export interface Leaving {
  /** Leaves in good order, or says to the others that this rank has failed. */
  leave(exitCode: number): void;
}

const open = new Set<Leaving>();
let watching = false;

/** Ends `one` with this process or thread, unless it is forgotten before. */
export function leaveAtExit(one: Leaving): void {
  open.add(one);
  if (watching) return;
  watching = true;
  process.on('exit', (code) => {
    for (const each of open) {
      try {
        each.leave(code);
      } catch {
        // Nobody can be told any more.
      }
    }
  });
}

/** It has ended by itself. */
export function forgetAtExit(one: Leaving): void {
  open.delete(one);
}
