// @ts-check
/**
 * @file Spoilt `.pt2` files, loaded and run in a child process that may crash: `node tests/fuzz/pt2.mjs --count 3000 --seed 1`.
 * Each file must load or be refused with an error of ours, in time and in bounded memory, and nothing else on disk may be
 * touched. A file is reproducible by its number: --only 1234 --keep /tmp/spoilt.pt2.
 */
import { fork } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { mutate } from './pt2/mutate.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
const { values: flags } = parseArgs({
  options: {
    count: { type: 'string', default: '3000' },
    seed: { type: 'string', default: '1' },
    only: { type: 'string' },
    keep: { type: 'string' },
  },
});
/** A file that takes longer hangs. */
const hangMs = 60_000;
/** A child that has grown beyond this has lost its bounds. */
const mostMb = 3000;

const sources = ['exports', 'models'].flatMap((folder) => {
  const path = join(here, '../../testdata', folder);
  return readdirSync(path)
    .filter((name) => name.endsWith('.pt2') && statSync(join(path, name)).size < 100_000)
    .map((name) => join(path, name));
});
const wholes = sources.map((path) => readFileSync(path));

const folder = mkdtempSync(join(tmpdir(), 'fuzz-pt2-'));
const inside = join(folder, 'a', 'b', 'c'); // deep, so that names with ../ still land in our folder
mkdirSync(inside, { recursive: true });

/** @typedef {{ result: string, ms: number, rssMb: number, strange: string[] }} Answer */

function startChild() {
  const child = fork(join(here, 'pt2/load-files.mjs'), {
    cwd: inside,
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    env: { ...process.env, OMP_NUM_THREADS: '1' },
  });
  /** @type {(message: unknown) => void} */
  let hear = () => undefined;
  child.on('message', (message) => hear(message));
  child.on('exit', (code, signal) => hear(`crash: ${signal ?? `exit ${code}`}`));
  const next = () =>
    new Promise((/** @type {(message: unknown) => void} */ resolve) => {
      const timer = setTimeout(() => hear('hang'), hangMs);
      hear = (message) => {
        clearTimeout(timer);
        hear = () => undefined;
        resolve(message);
      };
    });
  return { child, next, isReady: next() };
}

/** @param {number} from @param {number} to */
async function run(from, to) {
  /** @type {Record<string, number>} */
  const counts = {};
  /** @type {string[]} */
  const failures = [];
  let side = startChild();
  await side.isReady;
  let slowest = 0;
  let largest = 0;
  for (let number = from; number < to; number++) {
    const at = number % sources.length;
    const source = /** @type {string} */ (sources[at]);
    const { kind, bytes } = mutate(source, number, /** @type {Buffer} */ (wholes[at]));
    const path = flags.keep ?? join(inside, 'spoilt.pt2');
    writeFileSync(path, bytes);
    const answer = side.next();
    side.child.send(path);
    const got = /** @type {string | Answer} */ (await answer);
    const what = `number ${number} (${kind} of ${source.split('/').at(-1)})`;
    if (typeof got === 'string') {
      failures.push(`${what}: ${got}`);
      side.child.kill('SIGKILL');
      side = startChild();
      await side.isReady;
      continue;
    }
    slowest = Math.max(slowest, got.ms);
    largest = Math.max(largest, got.rssMb);
    counts[got.result.startsWith('unexpected') ? 'unexpected' : got.result] = (counts[got.result] ?? 0) + 1;
    if (got.result.startsWith('unexpected')) failures.push(`${what}: ${got.result}`);
    if (got.strange.length > 0) failures.push(`${what}: opened ${got.strange.join(', ')}`);
    if (got.rssMb > mostMb) failures.push(`${what}: the process has ${got.rssMb.toFixed(0)} MB`);
  }
  side.child.kill('SIGKILL');
  const stray = readdirSync(folder, { recursive: true })
    .map(String)
    .filter((name) => !/^a(\/b(\/c(\/spoilt\.pt2)?)?)?$/.test(name));
  if (stray.length > 0) failures.push(`files appeared: ${stray.join(', ')}`);
  return { counts, failures, slowest, largest };
}

try {
  const from = flags.only === undefined ? Number(flags.seed) * 1_000_000 : Number(flags.only);
  const { counts, failures, slowest, largest } = await run(
    from,
    flags.only === undefined ? from + Number(flags.count) : from + 1,
  );
  for (const [result, count] of Object.entries(counts).sort(([, a], [, b]) => b - a))
    console.log(`${String(count).padStart(6)}  ${result}`);
  console.log(`slowest ${slowest.toFixed(0)} ms, at most ${largest.toFixed(0)} MB, ${failures.length} failures`);
  for (const failure of failures) console.log(`FAILED ${failure}`);
  process.exitCode = failures.length === 0 ? 0 : 1;
} finally {
  rmSync(folder, { recursive: true });
}
