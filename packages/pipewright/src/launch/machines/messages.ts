/** @file Checks of messages from other machines: every field has the right type, is in its range, and is safe to print. */
import type { RankPlace } from '../../status/place.ts';
import type { RankFailure } from '../ranks/rank-failure.ts';
import type { RankNotice } from '../replacement/messages.ts';
import type { GuestMessage, HubMessage, MachineCommand, MachineReport } from './link.ts';
import { plainText } from './plain-text.ts';

/** The ranks that a machine may report on: from `first`, `count` of them. */
export interface RankRange {
  readonly first: number;
  readonly count: number;
}

const LONGEST = { word: 200, message: 20_000, stack: 50_000 } as const;
const MOST = 2 ** 31 - 1;
const states: readonly RankPlace['state'][] = ['silent', 'working', 'waiting', 'stopped', 'failed', 'done'];

/** A message of a machine to machine 0. Throws where it is none. */
export function guestMessage(value: Fields, ranks: RankRange): GuestMessage {
  if (value['kind'] === 'beat') return { kind: 'beat' };
  if (value['kind'] === 'failed') return { kind: 'failed', failure: failure(value['failure'], ranks) };
  if (value['kind'] === 'lost')
    return {
      kind: 'lost',
      failure: failure(value['failure'], ranks),
      places: list(value['places'], ranks.count).map((one) => place(one, ranks)),
    };
  if (value['kind'] === 'notice')
    return { kind: 'notice', rank: rankOf(value['rank'], ranks), notice: notice(value['notice']) };
  if (value['kind'] === 'over') return { kind: 'over', ...report(value, ranks) };
  throw new TypeError('kind');
}

/** A message of machine 0. Throws where it is none. */
export function hubMessage(value: Fields, ranks: RankRange): HubMessage {
  if (value['kind'] === 'beat') return { kind: 'beat' };
  if (value['kind'] === 'go')
    return { kind: 'go', run: text(value['run'], LONGEST.word), restarts: whole(value['restarts'], 0, MOST) };
  if (value['kind'] === 'failed') return { kind: 'failed', failure: failure(value['failure'], ranks) };
  if (value['kind'] === 'command') return { kind: 'command', command: command(fields(value['command']), ranks) };
  if (value['kind'] === 'report') return { kind: 'report', ...report(value, ranks), again: value['again'] === true };
  throw new TypeError('kind');
}

/** An object of a message, before its fields are known. */
export type Fields = Readonly<Record<string, unknown>>;

/** A value that is an object. Throws otherwise. */
export function fields(value: unknown): Fields {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Fields;
  throw new TypeError('an object');
}

/** A whole number of a range. Throws otherwise. */
export function whole(value: unknown, least: number, most: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new TypeError('a number');
}

/** A text that is safe to print, shortened if it is long. Throws where it is none. */
export function text(value: unknown, longest: number): string {
  if (typeof value === 'string') return plainText(value, longest);
  throw new TypeError('a text');
}

function report(value: Fields, ranks: RankRange): MachineReport {
  return {
    failures: list(value['failures'], ranks.count).map((one) => failure(one, ranks)),
    places: list(value['places'], ranks.count).map((one) => place(one, ranks)),
  };
}

function failure(value: unknown, ranks: RankRange): RankFailure {
  const { rank, message, name, code, stack, exitCode, atMs, ended } = fields(value);
  if (typeof atMs !== 'number' || !Number.isFinite(atMs) || typeof ended !== 'boolean')
    throw new TypeError('a failure');
  return {
    rank: rankOf(rank, ranks),
    message: text(message, LONGEST.message),
    name: name === undefined ? undefined : text(name, LONGEST.word),
    code: code === undefined ? undefined : text(code, LONGEST.word),
    stack: stack === undefined ? undefined : text(stack, LONGEST.stack),
    exitCode: whole(exitCode, 1, 255),
    atMs,
    ended,
  };
}

function notice(value: unknown): RankNotice {
  const { kind, generation, step, finished, why, from, atMs } = fields(value);
  if (typeof atMs !== 'number' || !Number.isFinite(atMs)) throw new TypeError('a time');
  const which = whole(generation, -1, MOST);
  if (kind === 'repeated') return { kind, generation: which, atMs };
  if (kind === 'restored')
    return { kind, generation: which, step: whole(step, 0, MOST), from: text(from, LONGEST.word), atMs };
  if (kind !== 'ready') throw new TypeError('kind');
  const at = step === null ? null : whole(step, 0, MOST);
  return { kind, generation: which, step: at, finished: finished === true, why: text(why, LONGEST.message), atMs };
}

function command(value: Fields, ranks: RankRange): MachineCommand {
  const { kind, rank, generation } = value;
  if (kind === 'interrupt') return { kind, generation: whole(generation, 0, MOST) };
  if (kind === 'start') return { kind, rank: rankOf(rank, ranks), restarts: whole(value['restarts'], 0, MOST) };
  if (kind === 'kill') return { kind, rank: rankOf(rank, ranks) };
  if (kind !== 'order') throw new TypeError('kind');
  const { kind: order, number, masterPort } = fields(value['order']);
  if (order === 'end') return { kind, rank: rankOf(rank, ranks), order: { kind: order } };
  if (order !== 'generation') throw new TypeError('an order');
  const meeting = { number: whole(number, 0, MOST), masterPort: whole(masterPort, 1, 65_535) };
  return { kind, rank: rankOf(rank, ranks), order: { kind: order, ...meeting } };
}

function place(value: unknown, ranks: RankRange): RankPlace {
  const { rank, state, step, slot, action, waitingFor } = fields(value);
  const number = (one: unknown): number | undefined => (one === undefined ? undefined : whole(one, 0, 2 ** 31));
  const known = states.find((one) => one === state);
  if (known === undefined) throw new TypeError('a state');
  return {
    rank: rankOf(rank, ranks),
    state: known,
    step: number(step),
    slot: number(slot),
    action: text(action, LONGEST.word),
    waitingFor: waitingFor === 'all' ? waitingFor : number(waitingFor),
  };
}

function rankOf(value: unknown, { first, count }: RankRange): number {
  return whole(value, first, first + count - 1);
}

/** At most one for each rank. */
function list(value: unknown, most: number): readonly unknown[] {
  if (Array.isArray(value) && value.length <= most) return value;
  throw new TypeError('a list');
}
