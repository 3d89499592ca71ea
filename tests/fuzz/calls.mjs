// @ts-check
/**
 * @file Random calls of the public functions, constructors and methods of all packages, with arguments that are mostly wrong:
 * `node tests/fuzz/calls.mjs --calls 30000 --seed 1`. Every call must return, or throw an error with a `code`; a TypeError
 * of the engine, a crash or a hang is a failure. A call is known by its seed and number: --from 1234 --calls 1 repeats one.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values: flags } = parseArgs({
  options: {
    calls: { type: 'string', default: '30000' },
    seed: { type: 'string', default: '1' },
    from: { type: 'string', default: '0' },
  },
});
const [first, calls] = [Number(flags.from), Number(flags.calls)];
const hangMs = 120_000;
const perChild = 10_000;
const folder = mkdtempSync(join(tmpdir(), 'fuzz-calls-'));
const place = join(folder, 'at');
/** @type {Record<string, number>} */
const counts = {};
/** @type {Map<string, string>} by function and text, the first of each */
const found = new Map();

/** Runs calls [from, to) in a child and returns where it got to. @param {number} from @param {number} to @returns {Promise<number>} */
function runChild(from, to) {
  writeFileSync(place, `${String(from).padStart(12)}\n`);
  const program = fileURLToPath(new URL('calls/run.mjs', import.meta.url));
  const child = spawn(process.execPath, [program, flags.seed, String(from), String(to), place, folder], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '1' },
  });
  let output = '';
  child.stdout.on('data', (chunk) => (output += String(chunk)));
  let last = '';
  let lastChange = performance.now();
  const watch = setInterval(() => {
    const now = readFileSync(place, 'utf8');
    if (now !== last) [last, lastChange] = [now, performance.now()];
    else if (performance.now() - lastChange > hangMs) child.kill('SIGKILL');
  }, 500);
  return new Promise((resolve) => {
    child.on('close', (code, signal) => {
      clearInterval(watch);
      for (const line of output.split('\n')) {
        if (!line.startsWith('{')) continue; // printed by a function
        const { counts: more, call, name, text, where } = JSON.parse(line);
        for (const [key, count] of Object.entries(more ?? {})) counts[key] = (counts[key] ?? 0) + Number(count);
        if (name !== undefined) found.set(`${name}: ${text}`, `${name}, call ${call}: ${text} (${where ?? ''})`);
      }
      if (code === 0) return resolve(to);
      const at = readFileSync(place, 'utf8').trim();
      const how = signal === 'SIGKILL' ? 'hangs' : `ends the process (${signal ?? code})`;
      found.set(at, `${at.replace(/^\d+ +/, '')}, call ${Number.parseInt(at, 10)}: ${how}`);
      resolve(Number.parseInt(at, 10) + 1);
    });
  });
}

for (let at = first; at < first + calls; ) at = await runChild(at, Math.min(at + perChild, first + calls));
rmSync(folder, { recursive: true, force: true });
for (const line of found.values()) console.log(line);
console.log(`${calls} calls, seed ${flags.seed}: ${JSON.stringify(counts)}, ${found.size} different problems`);
process.exitCode = found.size === 0 ? 0 : 1;
