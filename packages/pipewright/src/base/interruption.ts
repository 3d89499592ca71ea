/** @file Whether waits of this rank have become useless, because a rank is lost and all connect anew. Waits of the engine end by themselves. */

let ask: () => boolean = () => false;

/** Says how to find out. */
export function setInterruption(isOver: () => boolean): void {
  ask = isOver;
}

/** Whether a rank is lost, and this one shall stop what it does with the others. */
export function isInterrupted(): boolean {
  return ask();
}
