// @ts-check
/**
 * @file The conformance of data parallelism: every schedule with every way of dividing, and the comparison with plain training
 * on the whole batch. The suite runs a part of it, tests/parallel/conformance.mjs all of it.
 */
import { buildSchedule } from '@pipewright/schedule';

/** @typedef {import('./sharding.ts').Case} Case */
/** @typedef {import('./sharding.ts').Result} Result */
/** @typedef {{ readonly wrap: import('./sharding.ts').Wrap, readonly replicas?: number }} Way */

/** The schedules, with their stages on two ranks. @type {readonly (readonly [name: string, stages: number])[]} */
export const schedules = [
  ['GPipe', 2],
  ['1F1B', 2],
  ['ZB1P', 2],
  ['Interleaved1F1B', 4],
  ['LoopedBFS', 4],
  ['InterleavedZeroBubble', 4],
  ['ZBVZeroBubble', 4],
  ['DualPipeV', 4],
  ['random', 4],
];

/** The ways to divide: replicas, three levels of shards, and shards within, replicas across. @type {readonly Way[]} */
export const ways = [
  { wrap: 'replicate' },
  { wrap: 'optimizer' },
  { wrap: 'gradients' },
  { wrap: 'parameters' },
  { wrap: 'parameters', replicas: 2 },
];

/** @type {readonly (number | 'inf')[]} */
const norms = [1, 2, 3, 'inf'];
/** Steps of an optimizer in a run. */
const STEPS = 3;
const EVALUATIONS_PER_STEP = 1;

/**
 * One case: unequal rows everywhere, and what else differs follows from the schedule.
 * @param {readonly [name: string, stages: number]} what @param {Way} way @param {number} accumulate
 * @returns {Case}
 */
export function caseOf([schedule, stages], { wrap, replicas = 1 }, accumulate) {
  const dp = 2 * replicas;
  const number = schedules.findIndex(([name]) => name === schedule);
  return {
    schedule,
    stages,
    wrap,
    replicas,
    accumulate,
    pp: 2,
    dp,
    microbatches: 4,
    rows: [8, 13, 5, 9].slice(0, dp),
    checkpoint: schedule === '1F1B' || schedule === 'ZBVZeroBubble',
    evaluate: accumulate === 2 || schedule === 'LoopedBFS',
    divisor: schedule === 'GPipe' || schedule === 'DualPipeV',
    columns: schedule === 'ZB1P',
    units: schedule === 'Interleaved1F1B',
    reshardAfterForward: schedule === 'InterleavedZeroBubble' || schedule === 'random',
    keepGrads: schedule === 'LoopedBFS' && accumulate === 1,
    ...(accumulate === 2 && { clip: 0.05, norm: /** @type {number | 'inf'} */ (norms[number % norms.length]) }),
    bucketCapMb: 1e-4,
    ...(schedule === 'random' && { order: randomOrder(stages, 4, 20) }),
  };
}

/**
 * A valid order drawn at random: at every turn any of what could be done is done.
 * @param {number} stages @param {number} microbatches @param {number} seed
 */
function randomOrder(stages, microbatches, seed) {
  const ranks = 2;
  const { stageToRank } = buildSchedule('Interleaved1F1B', { ranks, stages, microbatches });
  let state = seed;
  const random = (/** @type {number} */ below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  /** @type {Set<string>} */
  const done = new Set();
  /** @type {string[][]} */
  const order = Array.from({ length: ranks }, () => []);
  const open = () => {
    /** @type {string[]} */
    const found = [];
    for (let stage = 0; stage < stages; stage++)
      for (let m = 0; m < microbatches; m++) {
        const has = (/** @type {string} */ kind, /** @type {number} */ at) => done.has(`${at}${kind}${m}`);
        if (!has('F', stage) && (stage === 0 || has('F', stage - 1))) found.push(`${stage}F${m}`);
        if (has('F', stage) && !has('I', stage) && (stage === stages - 1 || has('I', stage + 1)))
          found.push(`${stage}I${m}`);
        if (has('I', stage) && !has('W', stage)) found.push(`${stage}W${m}`);
      }
    return found;
  };
  for (let choices = open(); choices.length > 0; choices = open()) {
    const cell = /** @type {string} */ (choices[random(choices.length)]);
    done.add(cell);
    order[/** @type {number} */ (stageToRank[Number(cell[0])])]?.push(cell);
  }
  return { name: 'random', ranks, stages, microbatches, stageToRank: [...stageToRank], order };
}

/**
 * What is wrong with the results of a case's ranks, compared with plain training; empty where nothing is.
 * @param {Case} one @param {readonly Result[]} ranks @param {Result} want
 */
export function problemsOf(one, ranks, want, tolerance = 1e-12) {
  /** @type {string[]} */
  const problems = [];
  /** @type {Set<string>} */
  const seen = new Set();
  ranks.forEach((got, rank) => {
    const where = `${one.schedule}, ${one.wrap ?? 'replicate'} x ${one.replicas ?? 1}, ${one.accumulate} accumulated, rank ${rank}`;
    for (const what of /** @type {const} */ (['grads', 'weights']))
      for (const [name, values] of Object.entries(got[what])) {
        const whole = want[what][name] ?? null;
        const wanted = whole === null ? null : partOf(whole, got.parts?.[name]);
        seen.add(name);
        if (values === null || wanted === null) {
          if (values !== wanted) problems.push(`${where}: ${what} ${name} is ${values === null ? 'missing' : 'there'}`);
        } else if (values.length !== wanted.length)
          problems.push(`${where}: ${what} ${name} has ${values.length} numbers, not ${wanted.length}`);
        else {
          const off = values.reduce((most, value, i) => Math.max(most, Math.abs(value - Number(wanted[i]))), 0);
          if (!(off <= tolerance)) problems.push(`${where}: ${what} ${name} is off by ${off}`);
        }
      }
    got.norms.forEach((norm, at) => {
      const wanted = Number(want.norms[at]);
      if (!(Math.abs(norm - wanted) <= tolerance * Math.max(1, wanted)))
        problems.push(`${where}: the norm of step ${at} is ${norm}, not ${wanted}`);
    });
    if (got.norms.length !== want.norms.length) problems.push(`${where}: ${got.norms.length} norms`);
    problems.push(...countProblems(one, got).map((problem) => `${where}: ${problem}`));
  });
  if (seen.size !== Object.keys(want.weights).length)
    problems.push(`${one.schedule}: only ${seen.size} parameters seen`);
  return [...problems, ...lossProblems(one, ranks, want, tolerance)];
}

/** Reductions are one for every stage and step, gatherings what the plan says. @param {Case} one @param {Result} got */
function countProblems(one, got) {
  const stages = one.stages / one.pp;
  const problems = [];
  if (got.reductions.length !== stages || got.reductions.some(([, count]) => count !== STEPS))
    problems.push(`reductions by stage are ${JSON.stringify(got.reductions)}, one a step was due`);
  if (one.wrap === undefined || one.wrap === 'replicate') return problems;
  const begun = got.gathers.reduce((sum, [, count]) => sum + count, 0);
  const calls = STEPS * one.accumulate;
  const evaluations = one.evaluate === true ? calls * EVALUATIONS_PER_STEP : 0;
  // Below 'parameters' the whole is there all the time, and every call begins by gathering what has changed. An evaluation
  // leaves out what only backwards need.
  const most = one.wrap === 'parameters' ? got.planned * (calls + evaluations) : stages * (calls + evaluations);
  const least = one.wrap === 'parameters' ? got.planned * calls + stages * evaluations : most;
  if (begun < least || begun > most) problems.push(`${begun} gatherings, planned were ${least} to ${most}`);
  if (one.wrap === 'parameters' && one.reshardAfterForward !== true && got.planned !== stages)
    problems.push(`${got.planned} gatherings planned for ${stages} stages`);
  return problems;
}

/**
 * Losses of microbatches, weighted as in the step, are those of the whole batch.
 * @param {Case} one @param {readonly Result[]} ranks @param {Result} want @param {number} tolerance
 */
function lossProblems(one, ranks, want, tolerance) {
  const totals = want.losses.map(() => 0);
  const all = one.rows.reduce((sum, rows) => sum + rows, 0);
  const last = ranks.filter(({ losses }) => losses.length > 0);
  if (last.length !== one.dp) return [`${one.schedule}: losses on ${last.length} ranks, not ${one.dp}`];
  last.forEach(({ losses }, replica) => {
    const sizes = cut(Number(one.rows[replica]), one.microbatches);
    losses.forEach((loss, i) => {
      const weight = one.divisor === true ? 1 / (3 * all) : Number(sizes[i % one.microbatches]) / all;
      const step = Math.floor(i / one.microbatches);
      totals[step] = Number(totals[step]) + weight * loss;
    });
  });
  return totals.flatMap((total, step) =>
    Math.abs(total - Number(want.losses[step])) <= tolerance
      ? []
      : [`${one.schedule}, ${one.wrap}: the loss of step ${step} is ${total}, not ${want.losses[step]}`],
  );
}

/** Rows of the microbatches of a batch. @param {number} rows @param {number} count */
function cut(rows, count) {
  const each = Math.floor(rows / count);
  return Array.from({ length: count }, (_, i) => each + (i < rows % count ? 1 : 0));
}

/** The numbers of a part in those of the whole, row by row. @param {readonly number[]} whole @param {import('./sharding.ts').Part} [part] */
function partOf(whole, part) {
  if (part === undefined) return whole;
  const { globalShape, dim, offset, length } = part;
  const inner = globalShape.slice(dim + 1).reduce((product, size) => product * size, 1);
  const extent = Number(globalShape[dim]);
  return whole.filter((_, i) => {
    const at = Math.floor(i / inner) % extent;
    return at >= offset && at < offset + length;
  });
}
