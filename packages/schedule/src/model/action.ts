/** @file One cell of a schedule and its text form: `2F0` is stage 2, forward, microbatch 0. */

import { ScheduleError, show } from './errors.ts';

/** One thing a rank does: a kind of work on a stage for a microbatch, or several overlapped in `parts`. */
export interface Action {
  /** What is done. */
  readonly kind: ActionKind;
  /** The stage doing it (for sends and receives too); -1 for a composite. */
  readonly stage: number;
  /** The microbatch; null for UNSHARD, RESHARD, REDUCE_GRAD and composites. */
  readonly microbatch: number | null;
  /** The overlapped actions of a composite; null for a plain action. */
  readonly parts: readonly Action[] | null;
}

/** The twelve kinds of actions under their long names; the values are the notation. */
export const ComputationType = {
  Forward: 'F',
  BackwardInput: 'I',
  BackwardWeight: 'W',
  FullBackward: 'B',
  Unshard: 'UNSHARD',
  Reshard: 'RESHARD',
  ReduceGrad: 'REDUCE_GRAD',
  SendF: 'SEND_F',
  RecvF: 'RECV_F',
  SendB: 'SEND_B',
  RecvB: 'RECV_B',
  OverlapFB: 'OVERLAP_F_B',
} as const;

/** A kind of action in the notation of schedules. */
export type ActionKind = (typeof ComputationType)[keyof typeof ComputationType];
/** The same type under the name PyTorch users look for. */
export type ComputationType = ActionKind;

/** All kinds, in the order of their codes in packed columns (code = index + 1). */
export const actionKinds: readonly ActionKind[] = Object.freeze(Object.values(ComputationType));

const kindSet: ReadonlySet<string> = new Set(actionKinds);
const computeKinds: ReadonlySet<string> = new Set(['F', 'I', 'W', 'B', 'OVERLAP_F_B']);
const microbatchFreeKinds: ReadonlySet<string> = new Set(['UNSHARD', 'RESHARD', 'REDUCE_GRAD']);

/**
 * A plain action.
 * @example formatAction(action('F', 2, 0)) // '2F0'
 */
export function action(kind: ActionKind, stage: number, microbatch: number | null = null): Action {
  return Object.freeze({ kind, stage, microbatch, parts: null });
}

/**
 * A composite: a forward and a backward that run overlapped as one action.
 * @example formatAction(overlap([action('F', 0, 3), action('B', 3, 1)])) // '(0F3;3B1)OVERLAP_F_B'
 */
export function overlap(parts: readonly Action[], kind: ActionKind = 'OVERLAP_F_B'): Action {
  if (!Array.isArray(parts))
    throw new ScheduleError('BAD_ACTION', `overlap: parts must be an array of actions, got ${show(parts)}`);
  return Object.freeze({
    kind,
    stage: -1,
    microbatch: null,
    parts: parts.length > 0 ? Object.freeze([...parts]) : null,
  });
}

/**
 * Whether an action is compute (F, I, W, B or overlapped) rather than communication or bookkeeping.
 * @example isComputeOp(action('SEND_F', 0, 1)) // false
 */
export function isComputeOp(item: Action | ActionKind): boolean {
  return computeKinds.has(typeof item === 'string' ? item : checkAction('isComputeOp', item).kind);
}

/**
 * Reads a kind by its notation.
 * @example parseComputationType('REDUCE_GRAD') // 'REDUCE_GRAD'
 */
export function parseComputationType(text: string): ActionKind {
  if (kindSet.has(text)) return text as ActionKind;
  throw new ScheduleError(
    'BAD_ACTION',
    `parseComputationType: ${show(text)} is no kind of action; use one of ${actionKinds.join(' ')}`,
    { text },
  );
}

/** How `parseAction` reads. */
export interface ParseActionOptions {
  /** Read as PyTorch does: text after the action is ignored, any kind may be composite, microbatches may be missing. */
  readonly lenient?: boolean;
}

/**
 * Reads one cell; empty text is a bubble (null).
 * @example parseAction('2F0') // { kind: 'F', stage: 2, microbatch: 0, parts: null }
 */
export function parseAction(text: string, options: ParseActionOptions = {}): Action | null {
  if (typeof options !== 'object' || options === null)
    throw new ScheduleError(
      'BAD_OPTION',
      `parseAction: expected options such as { lenient: true }, got ${show(options)}`,
    );
  if (typeof text !== 'string')
    throw new ScheduleError('BAD_ACTION', `parseAction: expected text such as '2F0', got ${show(text)}`, { text });
  return options.lenient === true ? parseLenient(text) : parseStrict(text);
}

/**
 * The text of an action; a bubble is empty text.
 * @example formatAction({ kind: 'SEND_F', stage: 3, microbatch: 1, parts: null }) // '3SEND_F1'
 */
export function formatAction(item: Action | null): string {
  if (item === null) return '';
  if (typeof item !== 'object') checkAction('formatAction', item);
  if (item.parts !== null && item.parts !== undefined) return `(${item.parts.map(formatAction).join(';')})${item.kind}`;
  return `${item.stage}${item.kind}${item.microbatch ?? ''}`;
}

/**
 * Whether two cells are the same action, parts included.
 * @example actionsEqual(parseAction('2F0'), action('F', 2, 0)) // true
 */
export function actionsEqual(a: Action | null, b: Action | null): boolean {
  if (a === b) return true;
  if (a === null || b === null) return false;
  if (typeof a !== 'object' || typeof b !== 'object') checkAction('actionsEqual', typeof a === 'object' ? b : a);
  if (a.kind !== b.kind || a.stage !== b.stage || (a.microbatch ?? null) !== (b.microbatch ?? null)) return false;
  const x = a.parts ?? null;
  const y = b.parts ?? null;
  if (x === null || y === null) return x === y;
  return x.length === y.length && x.every((part, i) => actionsEqual(part, y[i]!));
}

/** Refuses what is no action. */
function checkAction(caller: string, item: Action): Action {
  if (typeof item === 'object' && item !== null) return item;
  throw new ScheduleError(
    'BAD_ACTION',
    `${caller}: expected an action such as { kind: 'F', stage: 2, microbatch: 0, parts: null }, got ${show(item)}`,
  );
}

/**
 * Name of the profiler range of an action.
 * @example profilerRangeName(action('F', 2, 0)) // 'PP:2F0'
 */
export function profilerRangeName(item: Action): string {
  return `PP:${formatAction(item)}`;
}

// Strict grammar, spaces allowed between tokens of a composite:
//   cell      = plain | composite
//   plain     = stage kind [microbatch]          microbatch required except for UNSHARD, RESHARD, REDUCE_GRAD
//   composite = '(' cell { ';' cell } ')' 'OVERLAP_F_B'

const plainHead = /^(\d+)(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(\d*)/;
const expectedShape = `expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B'`;

function refuse(text: string, why: string): never {
  throw new ScheduleError('BAD_ACTION', `parseAction: cannot read ${show(text)}: ${why}; ${expectedShape}`, { text });
}

function parseStrict(text: string): Action | null {
  const trimmed = text.trim();
  if (trimmed === '') return null;
  const [item, rest] = strictCell(trimmed, text);
  if (rest !== '') refuse(text, `${show(rest)} follows the action`);
  return item;
}

/** Reads one cell at the start of `text`; returns it with what follows. */
function strictCell(text: string, whole: string): [Action, string] {
  if (text.startsWith('(')) return strictComposite(text, whole);
  const match = plainHead.exec(text);
  if (match === null) refuse(whole, text.startsWith('-') ? 'a stage cannot be negative' : `no action at ${show(text)}`);
  const kind = match[2] as ActionKind;
  if (match[3] === '' && !microbatchFreeKinds.has(kind)) refuse(whole, `${match[1]}${kind} has no microbatch`);
  return [plainFrom(match), text.slice(match[0].length)];
}

function strictComposite(text: string, whole: string): [Action, string] {
  const parts: Action[] = [];
  let rest = text;
  do {
    const [part, after] = strictCell(rest.slice(1).trimStart(), whole);
    parts.push(part);
    rest = after.trimStart();
  } while (rest.startsWith(';'));
  if (!rest.startsWith(')')) refuse(whole, 'a list of parts has no closing parenthesis');
  rest = rest.slice(1).trimStart();
  if (!rest.startsWith('OVERLAP_F_B')) refuse(whole, 'a list of parts must be followed by OVERLAP_F_B');
  return [overlap(parts), rest.slice('OVERLAP_F_B'.length)];
}

function parseLenient(text: string): Action | null {
  const trimmed = text.trim();
  if (trimmed === '') return null;
  const close = trimmed.indexOf(')');
  if (trimmed.startsWith('(') && close > 0) {
    const parts: Action[] = [];
    for (const piece of trimmed.slice(1, close).split(';')) {
      const part = parseLenient(piece);
      if (part !== null) parts.push(part);
    }
    const kind = trimmed.slice(close + 1);
    if (!kindSet.has(kind)) refuse(text, `${show(kind)} is no kind of action`);
    return overlap(parts, kind as ActionKind);
  }
  const match = plainHead.exec(trimmed);
  if (match === null) refuse(text, 'no action at its start');
  return plainFrom(match);
}

function plainFrom(match: RegExpExecArray): Action {
  return action(match[2] as ActionKind, Number(match[1]), match[3] === '' ? null : Number(match[3]));
}
