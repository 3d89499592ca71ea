// @ts-check
/**
 * @file Makes calls [from, to) of a seed and prints, for each, what is wrong with its end, as lines of JSON; the last
 * line counts how they ended. `node tests/fuzz/calls/run.mjs SEED FROM TO PLACE`; PLACE is a file that says which one runs.
 */
import { openSync, writeSync } from 'node:fs';
import { chdir } from 'node:process';
import * as torch from '@pipewright/torch';
import { randomSource } from '../ops/random-call.mjs';
import { listTargets } from './targets.mjs';
import { anyValue, pick } from './values.mjs';

const [seed, from, to] = process.argv.slice(2, 5).map(Number);
const place = openSync(/** @type {string} */ (process.argv[5]), 'r+');
const groups = listTargets();
/** @type {Record<string, number>} */
const counts = {};
chdir(/** @type {string} */ (process.argv[6] ?? '.'));
process.on('unhandledRejection', (error) => report('a rejected promise', error));
process.on('uncaughtException', (error) => report('an uncaught error', error));

/** What the text of an error says is the engine's own. @param {unknown} error */
function isBare(error) {
  return !(error instanceof Error) || !('code' in error) || /^ERR_/.test(String(error.code));
}

/** @param {string} name @param {unknown} error */
function report(name, error) {
  // An error that was one of the arguments, and a class that was called as if it were a function.
  if (error instanceof Error && /^given$|^Class constructor Empty/.test(error.message)) return;
  const key = isBare(error) ? 'bare' : 'refused';
  counts[key] = (counts[key] ?? 0) + 1;
  if (key === 'bare') {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(typeof error);
    const where =
      error instanceof Error
        ? (error.stack ?? '')
            .split('\n')
            .filter((line) => /packages\/\w+\/(dist|src)/.test(line))[0]
            ?.trim()
        : '';
    console.log(JSON.stringify({ call: index, name, text: text.slice(0, 200), where }));
  }
}

let index = /** @type {number} */ (from);
for (; index < /** @type {number} */ (to); index++) {
  const random = randomSource(/** @type {number} */ (seed) * 1_000_003 + index);
  const target = pick(random, pick(random, groups));
  writeSync(place, `${String(index).padStart(12)} ${target.name.padEnd(60)}\n`, 0);
  const scope = new torch.Scope();
  const args = Array.from({ length: Math.floor(random() * 4) }, () => anyValue(random));
  try {
    const result = target.call(args);
    counts['returned'] = (counts['returned'] ?? 0) + 1;
    if (result instanceof Promise)
      await Promise.race([
        result.catch((error) => report(target.name, error)),
        new Promise((resolve) => setTimeout(resolve, 2000).unref()),
      ]);
  } catch (error) {
    report(target.name, error);
  }
  try {
    scope.close();
  } catch {
    // a call has opened one of its own
  }
}
console.log(JSON.stringify({ counts }));
process.exit(0);
