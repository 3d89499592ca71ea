// @ts-check
/** @file Every schedule with a backward against plain training: which cases, and what differs. */
import { buildSchedule, scheduleDefinitions } from '@pipewright/schedule';

/** @typedef {import('./launch.ts').TrainingCase} TrainingCase */
/** @typedef {import('./launch.ts').TrainingResult} TrainingResult */
/** @typedef {Partial<TrainingCase> & { model: string }} Variation */

/**
 * A schedule with a model.
 * @param {string} name @param {number} ranks @param {Variation} more
 * @returns {TrainingCase}
 */
function caseOf(name, ranks, more) {
  const microbatches = more.microbatches ?? 2 * ranks;
  const { stages, stageToRank } = buildSchedule(name, { ranks, microbatches });
  return { schedule: name, ranks, stages, stageToRank, microbatches, rows: 3 * microbatches, ...more };
}

/** The models and variations. @param {number} ranks @returns {Variation[]} */
export function variationsFor(ranks) {
  return [
    { model: 'mlp', evaluate: true },
    { model: 'mlp', accumulate: 2 },
    { model: 'mlp', rows: 3 * 2 * ranks + 1 },
    { model: 'skip' },
    { model: 'tied', accumulate: 2, clip: 0.05 },
    { model: 'frozen' },
    { model: 'tree', evaluate: true },
    { model: 'checkpoint' },
    { model: 'dropout' },
    { model: 'named', rows: 2 * 2 * ranks + 3, evaluate: true },
    { model: 'named', ready: true, evaluate: true },
    { model: 'skip', rows: 2 * 2 * ranks + 3, alone: true },
    { model: 'mlp', ready: true, alone: true },
  ];
}

/**
 * All schedules with all variations.
 * @param {number} ranks @param {readonly Variation[]} [variations]
 */
export function casesFor(ranks, variations = variationsFor(ranks)) {
  return scheduleDefinitions
    .filter((definition) => definition.hasBackward)
    .flatMap(({ name }) => variations.map((variation) => caseOf(name, ranks, variation)));
}

/** @param {TrainingCase} one */
export function title(one) {
  const words = [
    String(one.schedule),
    one.model,
    one.accumulate !== undefined && 'accumulated',
    one.rows % one.microbatches !== 0 && 'uneven',
    one.ready === true && 'ready',
    one.alone === true && 'without targets',
    one.varyRows === true && 'batches of several sizes',
    one.capture === true && 'captured',
  ];
  return words.filter((word) => typeof word === 'string').join(' ');
}

/** The largest difference between numbers. @param {readonly number[]} a @param {readonly number[]} b */
function distance(a, b) {
  if (a.length !== b.length) return Number.POSITIVE_INFINITY;
  return a.reduce((most, value, i) => {
    const apart = Math.abs(value - /** @type {number} */ (b[i]));
    return Number.isNaN(apart) ? Number.POSITIVE_INFINITY : Math.max(most, apart);
  }, 0);
}

/**
 * What differs from plain training, in words; empty where nothing does.
 * @param {TrainingCase} one @param {readonly TrainingResult[]} parts @param {TrainingResult} oracle
 * @returns {string[]}
 */
export function differences(one, parts, oracle) {
  /** @type {string[]} */
  const found = [];
  const expect = (
    /** @type {string} */ what,
    /** @type {readonly number[]} */ a,
    /** @type {readonly number[]} */ b,
  ) => {
    const apart = distance(a, b);
    if (!(apart < 1e-12)) found.push(`${what} differ by ${apart}`);
  };
  const withLosses = parts.filter((part) => (part.losses[0]?.length ?? 0) > 0);
  if (withLosses.length !== 1) found.push(`${withLosses.length} ranks have losses, not one`);
  expect('losses', withLosses[0]?.losses.flat() ?? [], oracle.losses.flat());
  expect('outputs of microbatches', (withLosses[0]?.parts ?? []).flat(), oracle.evals.flat());
  for (const what of /** @type {const} */ (['grads', 'weights'])) {
    /** @type {Record<string, number[] | null>} */
    const all = Object.assign({}, ...parts.map((part) => part[what]));
    const [mine, theirs] = [all, oracle[what]].map((record) => Object.keys(record).sort().join());
    if (mine !== theirs) found.push(`${what} are those of ${mine}, not of ${theirs}`);
    for (const [name, value] of Object.entries(oracle[what])) {
      const own = all[name] ?? null;
      if (value === null || own === null) {
        if (own !== value) found.push(`${what} of ${name} ${own === null ? 'are missing' : 'should not be there'}`);
      } else expect(`${what} of ${name}`, own, value);
    }
  }
  parts.forEach((part, rank) => {
    expect(`norms of the gradients on rank ${rank}`, part.norms, oracle.norms);
    expect(`evaluations on rank ${rank}`, part.evals.flat(), oracle.evals.flat());
    if (part.inFlight !== 0) found.push(`rank ${rank} still holds ${part.inFlight} microbatches`);
    if (part.leaked !== 0) found.push(`rank ${rank} has left ${part.leaked} tensors`);
    // The tree has a value that every step sends anew; checkpointed stages run their forwards inside of backwards; where stages
    // take values of several others, there may be more lanes than a graph can do side by side.
    const tooManyLanes = one.model === 'skip' && /over \d+ lanes/.test(part.captureProblem ?? '');
    const cannot = one.model === 'tree' || one.model === 'checkpoint' || tooManyLanes;
    if (one.capture === true && !cannot && part.captureProblem !== null)
      found.push(`rank ${rank} did not capture: ${part.captureProblem}`);
  });
  return found;
}
