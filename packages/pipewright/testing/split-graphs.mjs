// @ts-check
/** @file Exported models, split into stages: the cases, and the comparison with plain training of the unsplit graph. */
import { buildSchedule, scheduleDefinitions } from '@pipewright/schedule';

/** @typedef {import('./ranks/graph.mjs').Case} Case */
/** @typedef {import('./ranks/graph.mjs').Found} Found */

/** Every schedule with a backward on this number of ranks. @param {number} ranks @returns {Case[]} */
export function casesFor(ranks) {
  const schedules = scheduleDefinitions.filter((definition) => definition.hasBackward);
  return schedules.flatMap(({ name }, i) => {
    const microbatches = 2 * ranks;
    const { stages, stageToRank } = buildSchedule(name, { ranks, microbatches });
    const multiUse = i % 2 === 0 ? 'replicate' : 'transmit';
    const both = ['gpt2_dyn', 'llama_dyn'];
    const models = [...(ranks === 2 ? both : both.slice(i % 2, (i % 2) + 1)), ...(stages === 4 ? ['split_mlp'] : [])];
    return models.map(
      (model) =>
        /** @type {Case} */ ({ schedule: name, model, stages, stageToRank: [...stageToRank], microbatches, multiUse }),
    );
  });
}

/** @param {readonly number[]} a @param {readonly number[] | undefined} b */
function difference(a, b) {
  if (a.length !== b?.length) return Number.POSITIVE_INFINITY;
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - Number(b[i]))), 0);
}

/**
 * What is wrong with the results of a case's ranks; empty where nothing is.
 * @param {Case} one @param {readonly (Found & { live?: number[] })[]} parts @param {Found} oracle
 */
export function problemsOf(one, parts, oracle, tolerance = 1e-12) {
  const where = `${one.schedule} ${one.model} in ${one.stages} stages, ${one.multiUse}`;
  /** @type {string[]} */
  const problems = [];
  const compare = (
    /** @type {string} */ what,
    /** @type {readonly number[]} */ got,
    /** @type {readonly number[] | undefined} */ want,
  ) => {
    const off = difference(got, want);
    if (!(off < tolerance)) problems.push(`${where}: ${what} off by ${off}`);
  };
  compare(
    'losses',
    parts.flatMap((part) => part.losses),
    oracle.losses,
  );
  for (const what of /** @type {const} */ (['grads', 'weights'])) {
    const all = parts.flatMap((part) => Object.entries(part[what]));
    const nameOf = (/** @type {string} */ key) => key.replace(/^\d+ /, '');
    const names = [...new Set(all.map(([key]) => nameOf(key)))].sort();
    const wanted = Object.keys(oracle[what]).sort();
    if (names.join() !== wanted.join()) problems.push(`${where}: ${what} of ${names.join()}, not of ${wanted.join()}`);
    for (const [key, values] of all) compare(`${what} of ${key}`, values, oracle[what][nameOf(key)]);
  }
  for (const { live = [] } of parts)
    if (live[1] !== live[0]) problems.push(`${where}: a step left tensors, ${live[0]} to ${live[1]}`);
  return problems;
}
