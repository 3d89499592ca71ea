/** @file Where a rank is, read from its record, and in words. */
import { checkArgument } from '../base/checks.ts';
import { EVERYBODY, NONE, State, TEXT_LENGTH, Word } from './layout.ts';

/** Where a rank was when its record was read. */
export interface RankPlace {
  readonly rank: number;
  /** `silent`: it has reported nothing yet. `stopped`, `failed` and `done` come from the launcher. */
  readonly state: 'silent' | 'working' | 'waiting' | 'stopped' | 'failed' | 'done';
  /** The number of the training step or, where `evaluates` is true, of the evaluation. */
  readonly step: number | undefined;
  readonly evaluates?: boolean;
  readonly slot: number | undefined;
  readonly action: string;
  readonly waitingFor: number | 'all' | undefined;
}

const states = { [State.Silent]: 'silent', [State.Working]: 'working', [State.Waiting]: 'waiting' } as const;

/** Reads the record that `load` gives, again if it was being written. */
export function readPlace(rank: number, load: () => Int32Array): RankPlace {
  for (let attempt = 0; ; attempt++) {
    const words = load();
    const before = words[Word.Sequence]!;
    const place = decode(rank, words);
    // A rank that died while writing leaves an odd number; then the record is used as it is.
    if ((before % 2 === 0 && before === load()[Word.Sequence]) || attempt === 100) return place;
  }
}

/**
 * A place in words.
 *
 * @example formatPlace(place) // 'rank 2 waits at slot 17 (3RECV_B1) for rank 3'
 */
export function formatPlace(place: RankPlace): string {
  checkArgument('formatPlace', typeof place === 'object' && place !== null, ['the argument', place], 'a place');
  const { rank, state, step, evaluates, slot, action, waitingFor } = place;
  const where = [
    step === undefined ? '' : ` in ${evaluates === true ? 'evaluation' : 'step'} ${step}`,
    slot === undefined ? (action === '' ? '' : ` at: ${action}`) : ` at slot ${slot} (${action})`,
  ].join('');
  const whom = waitingFor === undefined ? '' : waitingFor === 'all' ? ' for all others' : ` for rank ${waitingFor}`;
  if (state === 'silent') return `rank ${rank} has not said where it is`;
  if (state === 'waiting') return `rank ${rank} waits${where}${whom}`;
  if (state === 'working') return `rank ${rank} works${where}`;
  const ended = { stopped: 'is stopped', failed: 'failed', done: 'is done' }[state];
  return state === 'done' ? `rank ${rank} ${ended}` : `rank ${rank} ${ended}${where}`;
}

function decode(rank: number, words: Int32Array): RankPlace {
  const number = (word: number): number | undefined => {
    const value = words[word]!;
    return value === NONE ? undefined : value;
  };
  const peer = words[Word.Peer]!;
  const step = words[Word.Step]!;
  const state = states[words[Word.State] as 0 | 1 | 2] ?? 'silent';
  const bytes = new Uint8Array(words.buffer, words.byteOffset + Word.Text * 4, TEXT_LENGTH);
  const characters = bytes.subarray(0, Math.min(words[Word.Length]!, TEXT_LENGTH));
  return {
    rank,
    state,
    step: step === 0 ? undefined : Math.abs(step) - 1,
    ...(step < 0 ? { evaluates: true } : {}),
    slot: state === 'silent' ? undefined : number(Word.Slot),
    action: String.fromCharCode(...characters),
    waitingFor: state !== 'waiting' ? undefined : peer === EVERYBODY ? 'all' : peer,
  };
}
