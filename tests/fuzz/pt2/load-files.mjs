// @ts-check
/**
 * @file The child of fuzz-pt2.mjs: loads the files whose paths come as messages, and runs those that load. Reports how each
 * ended, how long it took, how much memory the process has, and which other files were opened.
 */
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { dirname } from 'node:path';

/** @type {string[]} */
let opened = [];
const { openSync } = fs;
fs.openSync = (path, ...rest) => {
  opened.push(String(path));
  return openSync(path, ...rest);
};
syncBuiltinESMExports(); // before the loader is imported, so that it gets this one

const { noGrad, scope, TorchError, zeros } = await import('@pipewright/torch');
const { loadPt2, PipelineError, placeholdersOf } = await import('pipewright');

/** @param {import('pipewright').GraphModule} model */
function runOnce(model) {
  const inputs = placeholdersOf(model.graph).map(({ meta }) => {
    if (meta === undefined || meta === null || !('dtype' in meta)) return 2;
    const shape = meta.shape.map((size) => (typeof size === 'number' ? size : 2));
    if (shape.reduce((a, b) => a * b, 1) > 1e6) throw new PipelineError('BAD_INPUT', 'an input that large is not made');
    return zeros(shape, { dtype: /** @type {any} */ (meta.dtype) });
  });
  model.forward(...inputs);
  noGrad(() => model.forward(...inputs)); // other ways to free and to overwrite
}

/** @param {string} path */
function attempt(path) {
  /** @type {string} */
  let stage = 'load';
  try {
    return scope(() => {
      const model = loadPt2(path);
      stage = 'run';
      try {
        runOnce(model);
        return 'runs';
      } finally {
        model.dispose();
      }
    });
  } catch (error) {
    if (error instanceof PipelineError || error instanceof TorchError) return `${stage}: ${error.code}`;
    return `unexpected in ${stage}: ${error instanceof Error ? error.stack : String(error)}`.slice(0, 600);
  }
}

process.on('message', (/** @type {string} */ path) => {
  opened = [];
  const start = performance.now();
  const result = attempt(path);
  const strange = opened.filter((other) => dirname(other) !== dirname(path));
  process.send?.({ result, ms: performance.now() - start, rssMb: process.memoryUsage().rss / 2 ** 20, strange });
});
process.send?.('ready');
