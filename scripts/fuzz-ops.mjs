// @ts-check
/**
 * @file Random calls over all operators through callOp, in a child process that may crash:
 * `node scripts/fuzz-ops.mjs --calls 20000 --seed 1`. Each call is reproducible by its number. After a crash the call is
 * tried again alone, and by Python where PIPEWRIGHT_PYTHON names an interpreter with torch: crashes that libtorch has by
 * itself are in scripts/fuzz/known-crashes.json, any other is a failure. --report FILE writes what was found as JSON.
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
    report: { type: 'string' },
  },
});
const calls = Number(flags.calls);
const seed = Number(flags.seed);
/** A child that does not finish a call in this time is stopped. */
const hangMs = 30_000;
const perChild = 250;

/** @typedef {{ ended: 'done' | 'crash' | 'hang', at: number, signal: string, counts: Record<string, number> }} Outcome */

/** Runs calls [from, to) in a child. @param {number} from @param {number} to @param {string} folder @returns {Promise<Outcome>} */
function runChild(from, to, folder) {
  const place = join(folder, 'at');
  writeFileSync(place, `${String(from).padStart(12)}\n`);
  const command = `ulimit -d 6000000 2>/dev/null; ulimit -c 0; exec "$0" "$@"`; // a huge tensor must fail, not fill the machine
  const child = spawn('sh', ['-c', command, process.execPath, join(here, 'fuzz/run-calls.mjs'), String(seed), String(from), String(to), place], {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '1' },
  });
  let output = '';
  child.stdout.on('data', (chunk) => (output += String(chunk)));
  const readAt = () => Number(readFileSync(place, 'utf8'));
  let last = from;
  let lastChange = Date.now();
  let hung = false;
  const watch = setInterval(() => {
    const now = readAt();
    if (now !== last) [last, lastChange] = [now, Date.now()];
    else if (Date.now() - lastChange > hangMs) {
      hung = true;
      child.kill('SIGKILL');
    }
  }, 250);
  return new Promise((resolve) => {
    child.on('close', (code, signal) => {
      clearInterval(watch);
      const at = readAt();
      if (code === 0) resolve({ ended: 'done', at: to, signal: '', counts: JSON.parse(output.trim().split('\n').at(-1) ?? '{}') });
      else resolve({ ended: hung ? 'hang' : 'crash', at, signal: signal ?? `exit code ${code}`, counts: {} });
    });
  });
}

/** @param {number} index */
function describeCall(index) {
  const { stdout } = spawnSync(process.execPath, [join(here, 'fuzz/run-calls.mjs'), String(seed), String(index), 'describe'], { encoding: 'utf8' });
  return /** @type {import('./fuzz/random-call.mjs').Call} */ (JSON.parse(stdout));
}

/** How the same call ends in Python: a signal, 'returns' or 'raises ...'; nothing without an interpreter. @param {unknown} call @param {string} folder */
function inPython(call, folder) {
  const python = process.env['PIPEWRIGHT_PYTHON'];
  if (!python) return undefined;
  const result = spawnSync('sh', ['-c', 'ulimit -d 6000000 2>/dev/null; ulimit -c 0; exec "$0" "$@"', python, join(here, 'fuzz/replay.py')], {
    input: JSON.stringify(call),
    encoding: 'utf8',
    cwd: folder,
    timeout: 120_000,
    env: { ...process.env, OMP_NUM_THREADS: '1', MKL_NUM_THREADS: '1' },
  });
  return result.signal ?? (result.status === 0 ? result.stdout.trim() : `exit code ${result.status}`);
}

const known = /** @type {{ op: string, how: string, why: string }[]} */ (JSON.parse(readFileSync(join(here, 'fuzz/known-crashes.json'), 'utf8')));
const knownOps = new Set(known.map(({ op }) => op));
const folder = mkdtempSync(join(tmpdir(), 'fuzz-ops-'));
/** @type {{ index: number, op: string, how: string, alone: string, python: string | undefined, call: unknown }[]} */
const crashes = [];
/** @type {Record<string, number>} */
const totals = {};
const start = performance.now();
let next = Number(flags.from);
const end = next + calls;
while (next < end) {
  const outcome = await runChild(next, Math.min(next + perChild, end), folder);
  for (const [key, count] of Object.entries(outcome.counts)) totals[key] = (totals[key] ?? 0) + count;
  if (outcome.ended === 'done') {
    next = outcome.at;
    continue;
  }
  const alone = await runChild(outcome.at, outcome.at + 1, folder);
  const call = describeCall(outcome.at);
  const python = inPython(call, folder);
  const how = outcome.ended === 'hang' ? `no end in ${hangMs / 1000} s` : outcome.signal;
  crashes.push({ index: outcome.at, op: call.op, how, alone: alone.ended === 'done' ? 'does not crash alone' : alone.signal, python, call });
  console.log(`call ${outcome.at}: ${call.op}: ${how}; alone: ${crashes.at(-1)?.alone}; Python: ${python ?? 'not asked'}${knownOps.has(call.op) ? ' (known)' : ''}`);
  next = outcome.at + 1;
}
rmSync(folder, { recursive: true, force: true });
if (flags.report !== undefined) writeFileSync(flags.report, `${JSON.stringify({ seed, calls, totals, crashes }, null, 1)}\n`);
const ours = crashes.filter(({ op, python }) => !knownOps.has(op) && (python === undefined || /^(returns|raises)/.test(python)));
console.log(`${calls} calls, seed ${seed}, ${((performance.now() - start) / 1000).toFixed(0)} s: ${JSON.stringify(totals)}`);
console.log(`${crashes.length} crashes, ${ours.length} of them not libtorch's own${ours.length > 0 ? `: ${ours.map(({ index, op }) => `${op} (call ${index})`).join(', ')}` : ''}`);
process.exitCode = ours.length === 0 ? 0 : 1;
