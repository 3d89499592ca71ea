// @ts-check
/** @file Launches the ranks of one fault and prints as JSON how it went; ends with the exit code that `pipewright run` would have. */
import { writeSync } from 'node:fs';
import { LaunchError, launch } from 'pipewright/launch';

const { ranks, mode, timeoutMs, graceMs, ...fault } = JSON.parse(process.argv[2] ?? '');
const script = new URL('../../packages/pipewright/testing/ranks/faulty.mjs', import.meta.url);
try {
  await launch({ ranks, mode, timeoutMs, graceMs, script, data: { ...fault, ranks } }).done;
  say({});
} catch (error) {
  if (!(error instanceof LaunchError)) throw error;
  const { rank, code, message, failures, places, exitCode } = error;
  say({ rank, code, message, failures, places, exitCode, report: error.report() });
  process.exitCode = exitCode;
}

/** @param {object} outcome */
function say(outcome) {
  writeSync(1, `outcome ${JSON.stringify({ ...outcome, atMs: Number(process.hrtime.bigint()) / 1e6 })}\n`);
}
