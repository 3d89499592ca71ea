/** @file Whether a rank has joined its group, waits for the others to join, or ended without joining, as the launcher reads it. */
import { closeSync, openSync, writeSync } from 'node:fs';
import { RECORD_WORDS, STATUS_FILE } from '../../status/layout.ts';
import { type Place, RankStatus } from '../../status/record.ts';

/** The action of a rank that waits for the others to join. */
export const JOINING = 'initProcessGroup';
/** The action of a rank that will never join. */
export const NEVER_JOINED = 'ended before initProcessGroup';

/** The channel on which `initProcessGroup` reports that it begins and ends. */
const HOOK: unique symbol = Symbol.for('pipewright.joining');

/** Writes to this rank's record when `initProcessGroup` begins and ends. Processes only: the engine need not be there. */
export function watchJoining(): { endedWell(): void } {
  const { [STATUS_FILE]: file, RANK, LOCAL_RANK } = process.env;
  if (file === undefined) return { endedWell: () => undefined };
  const words = new Int32Array(RECORD_WORDS);
  const record = new RankStatus(Number(RANK), words);
  let joined = false;
  const write = (place: Place | null): void => {
    if (place === null) words.fill(0);
    else record.set(place);
    const open = openSync(file, 'r+');
    writeSync(open, new Uint8Array(words.buffer), 0, words.byteLength, Number(LOCAL_RANK) * words.byteLength);
    closeSync(open);
  };
  (globalThis as { [HOOK]?: (state: 'begin' | 'end' | 'failed') => void })[HOOK] = (state) => {
    joined ||= state === 'end';
    if (state === 'failed') return;
    write(state === 'begin' ? { action: JOINING, waitingFor: 'all' } : null);
  };
  return {
    endedWell: () => {
      try {
        if (!joined) write({ action: NEVER_JOINED });
      } catch {
        // The launcher is gone, with its files.
      }
    },
  };
}
