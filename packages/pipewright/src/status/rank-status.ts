/** @file How a rank reports where it is: a few stores into shared memory, formatted only when they are read. */
import { statSync } from 'node:fs';
import { getEnvironmentData } from 'node:worker_threads';
import { callOp, type Tensor, unscoped } from '@pipewright/torch';
import { RECORD_WORDS, STATUS_FILE, STATUS_KEY } from './layout.ts';
import { RankStatus } from './record.ts';

export { type Place, RankStatus } from './record.ts';

let own: RankStatus | undefined;

/** This rank's record. It is shared with the launcher where there is one. */
export const rankStatus: Pick<RankStatus, 'rank' | 'set' | 'get' | 'describe'> = {
  get rank(): number {
    return mine().rank;
  },
  set: (place) => (own ?? mine()).set(place),
  get: () => mine().get(),
  describe: () => mine().describe(),
};

/**
 * Reports in words what this rank does, outside of a schedule.
 *
 * @example reportPlace('reading data')
 */
export function reportPlace(text: string): void {
  rankStatus.set({ action: text });
}

function mine(): RankStatus {
  own ??= open();
  return own;
}

/** The record that the launcher prepared for this thread or process, or a private one without a launcher. */
function open(): RankStatus {
  const rank = number(process.env['RANK']);
  const local = number(process.env['LOCAL_RANK']);
  const shared = getEnvironmentData(STATUS_KEY);
  if (shared instanceof SharedArrayBuffer) return new RankStatus(rank, record(new Int32Array(shared), local));
  const file = process.env[STATUS_FILE];
  if (file !== undefined && statSync(file, { throwIfNoEntry: false })?.isFile() === true)
    return new RankStatus(rank, record(mapped(file), local));
  return new RankStatus(rank, new Int32Array(RECORD_WORDS));
}

function record(words: Int32Array, index: number): Int32Array {
  return words.subarray(index * RECORD_WORDS, (index + 1) * RECORD_WORDS);
}

let keptAlive: Tensor | undefined;

/** The file as memory: what is written there can be read by others at once, even when this process is stopped. */
function mapped(file: string): Int32Array {
  const words = statSync(file).size / 4;
  keptAlive = unscoped(() => callOp('aten::from_file', [file, true, words], { dtype: 'int32' }) as Tensor);
  return keptAlive.sharedArray() as Int32Array;
}

function number(text: string | undefined): number {
  const value = Number(text ?? 0);
  return Number.isSafeInteger(value) && value >= 0 ? value : 0;
}
