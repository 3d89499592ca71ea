// @ts-check
/**
 * @file Faults in training runs: `node tests/faults/faults.mjs --faults 50 --seed 1`. For each kind of fault (kill -9, SIGSTOP,
 * an error, a tensor of a wrong shape), with ranks as processes and as threads, so many runs in which one rank fails at one
 * slot; schedule, rank, step and slot are random. Everybody must end, the cause must be named, nothing may be left.
 * --only kill:processes takes one kind, --from 17 begins later, --ranks 2 has runs of two ranks only, --limit 3 is the time
 * limit of waits in seconds, --grace 2 is how long ranks may take to end after a failure, --patience 5 is how long after the
 * time limit all must have ended. --json prints what was seen as JSON,
 * --verbose what a user would read.
 */
import { parseArgs } from 'node:util';
import { faultKinds, planFaults } from './plan.mjs';
import { runFault } from './run.mjs';

const { values: flags } = parseArgs({
  options: {
    faults: { type: 'string', default: '50' },
    seed: { type: 'string', default: '1' },
    limit: { type: 'string', default: '3' },
    grace: { type: 'string', default: '2' },
    patience: { type: 'string', default: '5' },
    only: { type: 'string', default: '' },
    from: { type: 'string', default: '0' },
    ranks: { type: 'string', default: '2,4' },
    json: { type: 'boolean', default: false },
    verbose: { type: 'boolean', default: false },
  },
});
const limits = {
  timeoutMs: Number(flags.limit) * 1000,
  graceMs: Number(flags.grace) * 1000,
  patienceMs: Number(flags.patience) * 1000,
};
const say = (/** @type {string} */ text) => {
  if (!flags.json) console.log(text);
};

/** @typedef {import('./run.mjs').Verdict} Verdict */
const verdicts = /** @type {Verdict[]} */ ([]);
say(
  '| fault | ranks are | runs | passed | median s | longest s | the other ranks |\n| --- | --- | --: | --: | --: | --: | --- |',
);
for (const [kind, mode] of faultKinds) {
  if (flags.only !== '' && flags.only !== `${kind}:${mode}`) continue;
  const sizes = flags.ranks.split(',').map(Number);
  const faults = planFaults({ kind, mode, count: Number(flags.faults), seed: Number(flags.seed), sizes });
  const ofKind = /** @type {Verdict[]} */ ([]);
  for (const fault of faults.slice(Number(flags.from))) {
    const verdict = await runFault(fault, limits);
    ofKind.push(verdict);
    if (flags.verbose || verdict.problems.length > 0) say(describe(verdict));
  }
  verdicts.push(...ofKind);
  say(row(kind, mode, ofKind));
}
const bad = verdicts.filter(({ problems }) => problems.length > 0).length;
if (flags.json) console.log(JSON.stringify(verdicts, null, 1));
say(`${verdicts.length} runs, ${bad} with problems`);
process.exitCode = bad === 0 ? 0 : 1;

/** What was done, what a user would have read, and what is wrong with it. @param {Verdict} verdict */
function describe({ fault, ms, problems, report }) {
  const { kind, mode, number, schedule, model, ranks, rank, step, slot, action, where } = fault;
  return [
    `${kind} ${mode} ${number}: ${schedule} ${model}, rank ${rank} of ${ranks}, step ${step}, slot ${slot} (${action}), ${where}: ${ms} ms`,
    ...problems.map((problem) => `  wrong: ${problem}`),
    report.replaceAll(/^/gm, '    '),
  ].join('\n');
}

/** A line of the table. @param {string} kind @param {string} mode @param {readonly Verdict[]} all */
function row(kind, mode, all) {
  const times = all.map(({ ms }) => ms).toSorted((a, b) => a - b);
  const seconds = (/** @type {number | undefined} */ ms) => ((ms ?? Number.NaN) / 1000).toFixed(1);
  const good = all.filter(({ problems }) => problems.length === 0).length;
  const others = /** @type {Record<string, number>} */ ({});
  for (const verdict of all)
    for (const [how, count] of Object.entries(verdict.others)) others[how] = (others[how] ?? 0) + count;
  const told = Object.entries(others)
    .map(([how, count]) => `${count} ${how}`)
    .join(', ');
  return `| ${kind} | ${mode} | ${all.length} | ${good} | ${seconds(times[times.length >> 1])} | ${seconds(times.at(-1))} | ${told} |`;
}
