// @ts-check
/** @file Random faults, the same ones for the same seed, each with the place that must be named as its cause. */
import { buildSchedule, formatAction, lower, scheduleDefinitions } from '@pipewright/schedule';

/** @typedef {import('@pipewright/schedule').Action} Action */
/** @typedef {'kill' | 'stop' | 'throw' | 'shape'} Kind */
/** @typedef {'threads' | 'processes'} Mode */

/**
 * @typedef {object} Fault
 * @property {number} number
 * @property {Kind} kind
 * @property {Mode} mode
 * @property {'hook' | 'module' | 'loss'} where
 * @property {string} schedule
 * @property {string} model
 * @property {number} ranks
 * @property {number} stages
 * @property {readonly number[]} stageToRank
 * @property {number} microbatches
 * @property {number} steps
 * @property {boolean} training
 * @property {number} rank
 * @property {number} step
 * @property {number} slot
 * @property {string} action
 * @property {{ rank: number, step: number, slot: number, action: string }} cause what must be named first
 */

/** What can be done to a rank; a signal would end all threads at once. @type {readonly (readonly [Kind, Mode])[]} */
export const faultKinds = [
  ['kill', 'processes'],
  ['stop', 'processes'],
  ['throw', 'processes'],
  ['shape', 'processes'],
  ['throw', 'threads'],
  ['shape', 'threads'],
];

const STEPS = 3;

/** Plans `count` faults of a kind. @param {{ kind: Kind, mode: Mode, count: number, seed: number, sizes: readonly number[] }} what @returns {Fault[]} */
export function planFaults({ kind, mode, count, seed, sizes }) {
  const random = generator(`${seed} ${kind} ${mode}`);
  const faults = /** @type {Fault[]} */ ([]);
  while (faults.length < count) {
    const fault = planFault(kind, sizes, random);
    if (fault !== null) faults.push({ ...fault, number: faults.length, mode });
  }
  return faults;
}

/** One fault, or null where a tensor of a wrong shape would come after the end. @param {Kind} kind @param {readonly number[]} sizes @param {() => number} random */
function planFault(kind, sizes, random) {
  const pick = /** @template T @param {readonly T[]} all @returns {T} */ (all) =>
    /** @type {T} */ (all[Math.floor(random() * all.length)]);
  const { name, hasBackward: training } = pick(scheduleDefinitions);
  const ranks = pick(sizes);
  const built = buildSchedule(name, { ranks, microbatches: 2 * ranks });
  const { order, stages, microbatches, stageToRank } = lower(built, { unshardWindow: false });
  const rank = Math.floor(random() * ranks);
  const cells = rowOf(order, rank);
  const { slot, action } = pick(cells);
  const step = Math.floor(random() * STEPS);
  const isLoss = action.kind === 'F' && action.stage === stages - 1 && random() < 0.5;
  const model = random() < 0.2 ? 'tied' : 'mlp';
  const own = { rank, step, slot, action: formatAction(action) };
  const cause = kind === 'shape' ? mismatch(order, { ...own, stages, stageToRank }) : own;
  if (cause === null) return null;
  return {
    kind,
    where: /** @type {Fault['where']} */ (isLoss ? 'loss' : action.kind === 'F' ? 'module' : 'hook'),
    schedule: name,
    model,
    ...{ ranks, stages, stageToRank, microbatches, steps: STEPS, training },
    ...own,
    cause,
  };
}

/**
 * Where a tensor of a wrong shape is noticed: the first forward from that slot on makes it, the stage after it fails.
 * @param {readonly (readonly (Action | null)[])[]} order
 * @param {{ rank: number, step: number, slot: number, stages: number, stageToRank: readonly number[] }} at
 */
function mismatch(order, { rank, step, slot, stages, stageToRank }) {
  const forwards = parts(rowOf(order, rank)).filter(({ action }) => action.kind === 'F');
  const later = forwards.find((one) => one.slot >= slot);
  const found = later ?? forwards[0];
  const when = later === undefined ? step + 1 : step;
  if (found === undefined || when >= STEPS) return null;
  const { stage, microbatch } = found.action;
  const victim = Math.min(/** @type {number} */ (stage) + 1, stages - 1);
  const victimRank = /** @type {number} */ (stageToRank[victim]);
  const place = parts(rowOf(order, victimRank)).find(
    ({ action }) => action.kind === 'F' && action.stage === victim && action.microbatch === microbatch,
  );
  if (place === undefined) throw new Error(`internal: no forward of stage ${victim}, microbatch ${microbatch}`);
  return { rank: victimRank, step: when, slot: place.slot, action: formatAction(place.action) };
}

/** The actions of a rank with their slots. @param {readonly (readonly (Action | null)[])[]} order @param {number} rank */
function rowOf(order, rank) {
  return (order[rank] ?? []).flatMap((action, slot) => (action === null ? [] : [{ action, slot }]));
}

/** With the parts of overlapped actions instead of those. @param {readonly { action: Action, slot: number }[]} cells */
function parts(cells) {
  return cells.flatMap(({ action, slot }) => (action.parts ?? [action]).map((part) => ({ action: part, slot })));
}

/** Numbers from 0 to 1 that depend on the text only. @param {string} text */
function generator(text) {
  let state = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) state = Math.imul(state ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
  };
}
