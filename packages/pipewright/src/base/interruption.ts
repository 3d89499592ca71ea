/** @file Whether this rank has to give up waiting, because another one was lost and all ranks reconnect. Waits inside the engine end by themselves. */

let ask: () => boolean = () => false;

/** Sets the function that `isInterrupted` asks. */
export function setInterruption(isOver: () => boolean): void {
  ask = isOver;
}

/** Whether a rank was lost, so that this one has to stop communicating with the others. */
export function isInterrupted(): boolean {
  return ask();
}
