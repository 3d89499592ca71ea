// @ts-check
/**
 * @file Random calls over all operators through callOp, in a child process that may crash:
 * `node tests/fuzz/ops.mjs --calls 20000 --seed 1`. Each call is reproducible by its number. After a crash the call is
 * tried again alone, and by Python where PIPEWRIGHT_PYTHON names an interpreter with torch: crashes that libtorch has by
 * itself are in tests/fuzz/ops/known-crashes.json, any other is a failure. --match 'aten::[a-z]' takes only
 * operators whose name fits; --report FILE writes what was found as JSON.
 */
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = fileURLToPath(new URL('.', import.meta.url));
const { values: flags } = parseArgs({
  options: {
    calls: { type: 'string', default: '20000' },
    seed: { type: 'string', default: '1' },
    from: { type: 'string', default: '0' },
    match: { type: 'string', default: '' },
    report: { type: 'string' },
  },
});
const calls = Number(flags.calls);
const seed = Number(flags.seed);
/** A child that does not finish a call in this time is stopped. */
const hangMs = 240_000; // of a machine that does much else, too
const perChild = 250;
const manyTimes = 300;

const folder = mkdtempSync(join(tmpdir(), 'fuzz-ops-'));

/** @typedef {{ ended: 'done' | 'crash' | 'hang', at: number, signal: string, counts: Record<string, number> }} Outcome */

/** Runs calls [from, to) in a child, each `repeat` times. @param {number} from @param {number} to @param {number} [repeat] @returns {Promise<Outcome>} */
function runChild(from, to, repeat = 1) {
  const place = join(folder, 'at');
  writeFileSync(place, `${String(from).padStart(12)}\n`);
  const command = `ulimit -d 6000000 2>/dev/null; ulimit -c 0; exec "$0" "$@"`; // a huge tensor must fail, not fill the machine
  const child = spawn(
    'sh',
    [
      '-c',
      command,
      process.execPath,
      join(here, 'ops/run-calls.mjs'),
      String(seed),
      String(from),
      String(to),
      place,
      String(repeat),
    ],
    {
      cwd: folder,
      stdio: ['ignore', 'pipe', 'ignore'],
      env: { ...process.env, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '1', PIPEWRIGHT_FUZZ_MATCH: flags.match },
    },
  );
  let output = '';
  child.stdout.on('data', (chunk) => (output += String(chunk)));
  const readAt = () => Number(readFileSync(place, 'utf8'));
  let last = from;
  let lastChange = performance.now();
  let hung = false;
  const watch = setInterval(() => {
    const now = readAt();
    if (now !== last) [last, lastChange] = [now, performance.now()];
    else if (performance.now() - lastChange > hangMs) {
      hung = true;
      child.kill('SIGKILL');
    }
  }, 250);
  return new Promise((resolve) => {
    child.on('close', (code, signal) => {
      clearInterval(watch);
      const at = readAt();
      if (code === 0)
        resolve({ ended: 'done', at: to, signal: '', counts: JSON.parse(output.trim().split('\n').at(-1) ?? '{}') });
      else resolve({ ended: hung ? 'hang' : 'crash', at, signal: signal ?? `exit code ${code}`, counts: {} });
    });
  });
}

/** @param {number} index */
function describeCall(index) {
  const { stdout } = spawnSync(
    process.execPath,
    [join(here, 'ops/run-calls.mjs'), String(seed), String(index), 'describe'],
    { encoding: 'utf8', env: { ...process.env, PIPEWRIGHT_FUZZ_MATCH: flags.match } },
  );
  return /** @type {import('./ops/random-call.mjs').Call} */ (JSON.parse(stdout));
}

/** How the same call ends in Python: a signal, 'returns' or 'raises ...'; nothing without an interpreter. @param {unknown} call @param {number} repeat */
function inPython(call, repeat) {
  const python = process.env['PIPEWRIGHT_PYTHON'];
  if (!python) return undefined;
  const result = spawnSync(
    'sh',
    [
      '-c',
      'ulimit -d 6000000 2>/dev/null; ulimit -c 0; exec "$0" "$@"',
      python,
      join(here, 'ops/replay.py'),
      String(repeat),
    ],
    {
      input: JSON.stringify(call),
      encoding: 'utf8',
      cwd: folder,
      timeout: 120_000,
      env: { ...process.env, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '1' },
    },
  );
  return result.signal ?? (result.status === 0 ? result.stdout.trim() : `exit code ${result.status}`);
}

/**
 * The call that is to blame for a crash at call `at`: that one when it crashes alone, or one before it that corrupts memory
 * and shows it when it is made many times.
 * @param {number} first @param {number} at @returns {Promise<{ index: number, repeat: number, alone: string }>}
 */
async function findCulprit(first, at) {
  const alone = await runChild(at, at + 1);
  if (alone.ended !== 'done') return { index: at, repeat: 1, alone: alone.signal };
  const again = await runChild(first, at + 1, manyTimes);
  if (again.ended === 'done') return { index: at, repeat: 1, alone: 'does not crash alone' };
  for (let index = again.at; index >= Math.max(first, again.at - 3); index--) {
    const many = await runChild(index, index + 1, manyTimes);
    if (many.ended !== 'done')
      return { index, repeat: manyTimes, alone: `${many.signal} when made ${manyTimes} times` };
  }
  return { index: again.at, repeat: manyTimes, alone: 'does not crash alone' };
}

const known = /** @type {{ op: string, how: string, seenWith: string }[]} */ (
  JSON.parse(readFileSync(join(here, 'ops/known-crashes.json'), 'utf8'))
);
const knownOps = new Set(known.map(({ op }) => op));
/** `aten::add` of `aten::add.Tensor`. @param {string} op */
const baseOf = (op) => op.split('.')[0] ?? op;
/** @type {{ index: number, op: string, how: string, alone: string, python: string | undefined, call: unknown }[]} */
const crashes = [];
/** @type {Record<string, number>} */
const totals = {};
const start = performance.now();
let next = Number(flags.from);
const end = next + calls;
while (next < end) {
  const chunk = next;
  const outcome = await runChild(next, Math.min(next + perChild, end));
  for (const [key, count] of Object.entries(outcome.counts)) totals[key] = (totals[key] ?? 0) + count;
  if (outcome.ended === 'done') {
    next = outcome.at;
    continue;
  }
  const { index, repeat, alone } = await findCulprit(chunk, outcome.at);
  const call = describeCall(index);
  let python = inPython(call, repeat);
  if (python !== undefined && /^(returns|raises)/.test(python)) python = inPython(call, manyTimes); // it may take luck to crash
  const how = outcome.ended === 'hang' ? `no end in ${hangMs / 1000} s` : outcome.signal;
  crashes.push({ index, op: call.op, how, alone, python, call });
  console.log(
    `call ${outcome.at}: ${how}: ${call.op} (call ${index}); alone: ${alone}; Python: ${python ?? 'not asked'}${knownOps.has(baseOf(call.op)) ? ' (known)' : ''}`,
  );
  next = outcome.at + 1;
}
rmSync(folder, { recursive: true, force: true });
if (flags.report !== undefined)
  writeFileSync(flags.report, `${JSON.stringify({ seed, calls, totals, crashes }, null, 1)}\n`);
const ours = crashes.filter(
  ({ op, python }) => !knownOps.has(baseOf(op)) && (python === undefined || /^(returns|raises)/.test(python)),
);
console.log(
  `${calls} calls, seed ${seed}, ${((performance.now() - start) / 1000).toFixed(0)} s: ${JSON.stringify(totals)}`,
);
console.log(
  `${crashes.length} crashes, ${ours.length} of them not libtorch's own${ours.length > 0 ? `: ${ours.map(({ index, op }) => `${op} (call ${index})`).join(', ')}` : ''}`,
);
const strange = Object.keys(totals).filter((key) => key.startsWith('unexpected'));
for (const text of strange) console.log(`an error that is no TorchError: ${text}`);
process.exitCode = ours.length + strange.length === 0 ? 0 : 1;
