/** @file The record of one rank: where it is, written to memory that other threads and processes may read at any time. */
import { checkArgument } from '../base/checks.ts';
import { EVERYBODY, NOBODY, NONE, State, TEXT_LENGTH, Word } from './layout.ts';
import { formatPlace, type RankPlace, readPlace } from './place.ts';

/** Where a rank is. */
export interface Place {
  /** Position in this rank's row of the schedule. */
  readonly slot?: number | undefined;
  /** What is done there, such as `3RECV_B1`; any short text. */
  readonly action: string;
  /** The rank that is waited for, or `all`; absent while the rank works. */
  readonly waitingFor?: number | 'all' | undefined;
  /** Which step of the training, or which evaluation. */
  readonly step?: number | undefined;
  /** Whether `step` is the number of an evaluation. */
  readonly evaluates?: boolean | undefined;
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
    checkArgument('RankStatus', words instanceof Int32Array, ['words', words], 'an Int32Array');
    this.rank = rank;
    this.words = words;
    const { buffer, byteOffset } = words;
    this.text = new Uint8Array(buffer, byteOffset + Word.Text * 4, TEXT_LENGTH);
  }

  /** Sets what this rank does from now on. */
  set(place: Place): void {
    if (typeof place?.action !== 'string')
      checkArgument('rankStatus.set', false, ['the place', place], 'an object with an action');
    const { words, text } = this;
    const { slot, action, waitingFor, step, evaluates } = place;
    words[Word.Sequence] = words[Word.Sequence]! + 1;
    words[Word.State] = waitingFor === undefined ? State.Working : State.Waiting;
    words[Word.Slot] = slot ?? NONE;
    if (step !== undefined) words[Word.Step] = evaluates === true ? -1 - step : step + 1;
    words[Word.Peer] = waitingFor === undefined ? NOBODY : waitingFor === 'all' ? EVERYBODY : waitingFor;
    const length = Math.min(action.length, TEXT_LENGTH);
    for (let i = 0; i < length; i++) text[i] = action.charCodeAt(i);
    words[Word.Length] = length;
    words[Word.Sequence] = words[Word.Sequence]! + 1;
  }

  /** The place that was set last. */
  get(): RankPlace {
    return readPlace(this.rank, () => this.words);
  }

  /** The same in words: `rank 2 waits at slot 17 (3RECV_B1) for rank 3`. */
  describe(): string {
    return formatPlace(this.get());
  }
}
