/** @file The one error class of this package, and the checks that end in it. */

/** What went wrong, for programs; the message says it for people. */
export const scheduleErrorCodes = [
  'BAD_ACTION',
  'BAD_CSV',
  'BAD_JSON',
  'BAD_OPTION',
  'BAD_PLAN',
  'BAD_SCHEDULE',
  'BAD_SHAPE',
  'DEADLOCK',
  'MEMORY_LIMIT',
  'NOT_COMPUTE_ONLY',
  'PACKING_RANGE',
  'UNKNOWN_OPTION',
  'UNKNOWN_SCHEDULE',
  'UNSUPPORTED',
] as const;

/** One of the codes of this package. */
export type ScheduleErrorCode = (typeof scheduleErrorCodes)[number];

/**
 * An error that names the function, the rule, the values and the way out.
 * @example try { parseAction('0X1') } catch (e) { if (e instanceof ScheduleError) e.code } // 'BAD_ACTION'
 */
export class ScheduleError extends Error {
  /** Stable name of the broken rule. */
  readonly code: ScheduleErrorCode;
  /** Values a program may want: ranks, slots, partial results. */
  readonly details: Readonly<Record<string, unknown>>;

  constructor(code: ScheduleErrorCode, message: string, details: Readonly<Record<string, unknown>> = {}) {
    super(message);
    this.name = 'ScheduleError';
    this.code = code;
    this.details = details;
  }
}

/**
 * The candidate closest to a misspelt word, or undefined when none is near (case is ignored).
 * @example nearest('interleaved1f1', ['GPipe', 'Interleaved1F1B']) // 'Interleaved1F1B'
 */
export function nearest(word: string, candidates: Iterable<string>): string | undefined {
  const wanted = word.toLowerCase();
  let best: string | undefined;
  let bestDistance = Math.max(2, Math.ceil(wanted.length * 0.4)) + 1;
  for (const candidate of candidates) {
    const distance = editDistance(wanted, candidate.toLowerCase());
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** Insertions, deletions, replacements and swaps of neighbours that turn one word into the other. */
function editDistance(a: string, b: string): number {
  let older: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const current = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(previous[j]! + 1, current[j - 1]! + 1, previous[j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) cost = Math.min(cost, older[j - 2]! + 1);
      current.push(cost);
    }
    older = previous;
    previous = current;
  }
  return previous[b.length]!;
}

/** Whether a value may have values by name: no list, map or promise, whose own names say nothing of what is in them. */
export function isRecord(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !(Symbol.iterator in value) && !(value instanceof Promise);
}

/**
 * Refuses option names a function does not know, with the near miss.
 * @example checkOptions('lower', { windwo: 3 }, ['window']) // ScheduleError: … did you mean 'window'?
 */
export function checkOptions(caller: string, options: object, known: readonly string[]): void {
  if (!isRecord(options))
    throw new ScheduleError(
      'BAD_OPTION',
      `${caller}: expected an object of options (${known.join(', ')}), got ${show(options)}`,
    );
  for (const key of Object.keys(options)) {
    if (known.includes(key)) continue;
    const near = nearest(key, known);
    const hint = near === undefined ? `known options: ${known.join(', ')}` : `did you mean '${near}'?`;
    throw new ScheduleError('UNKNOWN_OPTION', `${caller}: unknown option '${key}'; ${hint}`, { option: key, known });
  }
}

/**
 * Refuses an option whose value is not one of a list of words.
 * @example checkChoice('lower', 'compat', 'troch', ['torch']) // ScheduleError: … did you mean 'torch'?
 */
export function checkChoice(caller: string, option: string, value: unknown, choices: readonly string[]): void {
  if (value === undefined || (typeof value === 'string' && choices.includes(value))) return;
  const near = typeof value === 'string' ? nearest(value, choices) : undefined;
  const hint = near === undefined ? `use ${choices.map((c) => `'${c}'`).join(' or ')}` : `did you mean '${near}'?`;
  throw new ScheduleError('BAD_OPTION', `${caller}: ${option} is ${show(value)}; ${hint}`, { option, value });
}

/**
 * Refuses a count that is not an integer of at least `least`.
 * @example checkCount('buildSchedule', 'ranks', 0) // ScheduleError: buildSchedule: ranks must be an integer of at least 1, got 0
 */
export function checkCount(caller: string, option: string, value: unknown, least = 1): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= least) return value;
  throw new ScheduleError(
    'BAD_OPTION',
    `${caller}: ${option} must be an integer of at least ${least}, got ${show(value)}`,
    {
      option,
      value,
    },
  );
}

/**
 * Refuses an argument that is not a function.
 * @example checkFunction('forEachLeaf', 'visit', 3) // ScheduleError: forEachLeaf: visit must be a function, got 3
 */
export function checkFunction(caller: string, name: string, value: unknown): void {
  if (typeof value === 'function') return;
  throw new ScheduleError('BAD_OPTION', `${caller}: ${name} must be a function, got ${show(value)}`);
}

/** A value as it may stand in a message. */
export function show(value: unknown): string {
  if (typeof value === 'string') return `'${value.length > 60 ? `${value.slice(0, 57)}...` : value}'`;
  if (typeof value === 'object' && value !== null)
    return Array.isArray(value) ? `an array of ${value.length}` : 'an object';
  if (typeof value === 'function') return 'a function';
  return typeof value === 'bigint' ? `${value}n` : String(value);
}
