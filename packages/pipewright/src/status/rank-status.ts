/** @file A rank says where it is: a few stores into shared memory, formatted only when somebody asks. */
import { statSync } from 'node:fs';
import { getEnvironmentData } from 'node:worker_threads';
import { callOp, type Tensor, unscoped } from '@pipewright/torch';
import { EVERYBODY, NOBODY, NONE, RECORD_WORDS, STATUS_FILE, STATUS_KEY, State, TEXT_LENGTH, Word } from './layout.ts';
import { formatPlace, type RankPlace, readPlace } from './place.ts';

/** Where a rank is. */
export interface Place {
  /** Position in this rank's row of the schedule. */
  readonly slot?: number | undefined;
  /** What is done there, such as `3RECV_B1`; any short text. */
  readonly action: string;
  /** The rank that is waited for, or `all`; absent while the rank works. */
  readonly waitingFor?: number | 'all' | undefined;
  /** Which step of the training. */
  readonly step?: number | undefined;
}

/**
 * One rank's record. `set` costs a few dozen nanoseconds; the launcher reads the record when a rank fails or a wait
 * takes too long.
 *
 * @example rankStatus.set({ slot: 17, action: '3RECV_B1', waitingFor: 3 })
 */
export class RankStatus {
  readonly rank: number;
  private readonly words: Int32Array;
  private readonly text: Uint8Array;

  /** A record at the beginning of `words`, which others may see. */
  constructor(rank: number, words: Int32Array) {
    this.rank = rank;
    this.words = words;
    const { buffer, byteOffset } = words;
    this.text = new Uint8Array(buffer, byteOffset + Word.Text * 4, TEXT_LENGTH);
  }

  /** Says what this rank does from now on. */
  set(place: Place): void {
    const { words, text } = this;
    const { slot, action, waitingFor, step } = place;
    words[Word.Sequence] = (words[Word.Sequence] as number) + 1;
    words[Word.State] = waitingFor === undefined ? State.Working : State.Waiting;
    words[Word.Slot] = slot ?? NONE;
    if (step !== undefined) words[Word.Step] = step + 1;
    words[Word.Peer] = waitingFor === undefined ? NOBODY : waitingFor === 'all' ? EVERYBODY : waitingFor;
    const length = Math.min(action.length, TEXT_LENGTH);
    for (let i = 0; i < length; i++) text[i] = action.charCodeAt(i);
    words[Word.Length] = length;
    words[Word.Sequence] = (words[Word.Sequence] as number) + 1;
  }

  /** What was said last. */
  get(): RankPlace {
    return readPlace(this.rank, () => this.words);
  }

  /** The same in words: `rank 2 waits at slot 17 (3RECV_B1) for rank 3`. */
  describe(): string {
    return formatPlace(this.get());
  }
}

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
 * Says in words what this rank does, outside of a schedule.
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

/** The record that the launcher prepared: of a thread, of a process, or one that nobody else sees. */
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
