// @ts-check
/** @file The child of fuzz-ops.mjs: `node run-calls.mjs SEED FROM TO FILE [REPEAT]` makes the calls and notes in FILE which one it is at. */
import { openSync, writeSync } from 'node:fs';
import { callOp, listOps, scope, TorchError } from '@pipewright/torch';
import { buildValue, camelCase } from './build-values.mjs';
import { randomCall } from './random-call.mjs';
import { skippedOps } from './skipped-ops.mjs';

const [seed = 1, from = 0] = process.argv.slice(2, 4).map(Number);
const match = new RegExp(process.env['PIPEWRIGHT_FUZZ_MATCH'] ?? '');
const schemas = listOps()
  .filter(({ name }) => !skippedOps.has(name) && match.test(name))
  .sort((a, b) => (`${a.name}.${a.overload}` < `${b.name}.${b.overload}` ? -1 : 1));

/** @param {import('./random-call.mjs').Call} call */
function attempt(call) {
  try {
    scope(() => {
      const args = call.args.map(buildValue);
      const options = Object.fromEntries(
        Object.entries(call.kwargs).map(([key, value]) => [camelCase(key), buildValue(value)]),
      );
      callOp(call.op, args, options);
    });
    return 'returned';
  } catch (error) {
    if (error instanceof TorchError) return error.code;
    return `unexpected: ${String(error).slice(0, 200)}`;
  }
}

if (process.argv[4] === 'describe') {
  console.log(JSON.stringify(randomCall(schemas, seed, from)));
} else {
  const to = Number(process.argv[4]);
  const repeat = Number(process.argv[6] ?? 1);
  const file = openSync(/** @type {string} */ (process.argv[5]), 'r+');
  /** @type {Record<string, number>} */
  const counts = {};
  for (let index = from; index < to; index++) {
    writeSync(file, String(index).padStart(12), 0);
    for (let i = 0; i < repeat; i++) {
      const result = attempt(randomCall(schemas, seed, index));
      counts[result] = (counts[result] ?? 0) + 1;
    }
  }
  console.log(JSON.stringify(counts));
}
