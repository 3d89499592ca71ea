/**
 * @file Where each rank is, in memory that its launcher can read at any time: also while the rank is blocked or stopped.
 * One record of 32 words for each rank; a text of up to 104 characters says what the rank is doing.
 */

/** Words of 32 bits in a record: two cache lines, so that ranks do not disturb each other. */
export const RECORD_WORDS = 32;

/** Words of a record. */
export const Word = {
  /** Odd while the record is being written; grows with every write. */
  Sequence: 0,
  State: 1,
  /** The number of the step and 1, of an evaluation below 0; 0: not known. */
  Step: 2,
  Slot: 3,
  /** Whom the rank waits for: a rank, `NOBODY` or `EVERYBODY`. */
  Peer: 4,
  /** Characters of the text. */
  Length: 5,
  /** The text, four characters to a word. */
  Text: 6,
} as const;

/** The longest text that is kept. */
export const TEXT_LENGTH: number = (RECORD_WORDS - Word.Text) * 4;

/** What a rank does. */
export const State = { Silent: 0, Working: 1, Waiting: 2 } as const;

/** Stands for a number that is not known. */
export const NONE = -1;
export const NOBODY = -1;
export const EVERYBODY = -2;

/** The variable that names the file with the records of this machine's ranks, and the first rank in it. */
export const STATUS_FILE = 'PIPEWRIGHT_STATUS_FILE';
/** The key under which threads find their records. */
export const STATUS_KEY = 'pipewright.status';

/** Bytes of the records of `ranks` ranks, and of one more that the launcher writes for all of them. */
export function statusBytes(ranks: number): number {
  return (ranks + 1) * RECORD_WORDS * 4;
}

/** The word with the number of the ranks' generation, after their records. */
export function generationWord(ranks: number): number {
  return ranks * RECORD_WORDS;
}
