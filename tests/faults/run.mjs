// @ts-check
/** @file Runs one planned fault and lists what is wrong with how it ended; an empty list is a pass. */
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** @typedef {import('./plan.mjs').Fault} Fault */
/** @typedef {{ rank: number, message: string, code?: string, ended: boolean }} Failure */
/** @typedef {{ rank: number, state: string, step?: number, slot?: number, action: string, waitingFor?: number | 'all' }} Place */
/** @typedef {{ rank?: number, message?: string, exitCode?: number, failures?: Failure[], places?: Place[], report?: string, atMs: number }} Outcome */

/**
 * @typedef {object} Verdict
 * @property {Fault} fault
 * @property {string[]} problems
 * @property {number} ms from the fault to the end of all
 * @property {Record<string, number>} others how the other ranks were accounted for
 * @property {string} report
 */

/** Starting, training and ending never take this long, whatever else the machine does. */
const HANG_MS = 180_000;
/** The variable by which processes of a run are found. */
const MARK = 'PIPEWRIGHT_FAULT_RUN';

/** All must have ended `patienceMs` after the time limit. @param {Fault} fault @param {{ timeoutMs: number, graceMs: number, patienceMs: number }} limits @returns {Promise<Verdict>} */
export async function runFault(fault, { timeoutMs, graceMs, patienceMs }) {
  const folder = mkdtempSync(join(tmpdir(), 'faults-'));
  const temporary = join(folder, 'tmp');
  mkdirSync(temporary);
  const mark = randomUUID();
  try {
    const { outcome, code, hangs, stderr } = await start({ ...fault, folder, timeoutMs, graceMs }, { temporary, mark });
    const told = existsSync(join(folder, 'fault.json'))
      ? /** @type {{ atMs: number, statusFile?: string }} */ (
          JSON.parse(readFileSync(join(folder, 'fault.json'), 'utf8'))
        )
      : null;
    const ms = told === null || outcome === null ? Number.NaN : outcome.atMs - told.atMs;
    const accounted = outcome === null ? { problems: [], others: {} } : accountForOthers(fault, outcome);
    const problems = [
      ...(hangs ? [`did not end in ${HANG_MS} ms`] : []),
      ...(told === null ? ['the fault did not happen'] : []),
      ...(outcome === null ? [`the launcher ended with ${code} and said: ${stderr}`] : []),
      ...(ms > timeoutMs + patienceMs ? [`ended ${ms} ms after the fault, with a time limit of ${timeoutMs} ms`] : []),
      ...(outcome === null ? [] : checkCause(fault, outcome, code)),
      ...accounted.problems,
      ...(await checkLeft(mark, temporary, told?.statusFile)),
    ];
    return { fault, problems, ms, others: accounted.others, report: outcome?.report ?? stderr };
  } finally {
    for (const pid of marked(mark)) tryKill(pid);
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * Starts the launcher in a process of its own and waits for its end.
 * @param {object} task @param {{ temporary: string, mark: string }} where
 * @returns {Promise<{ outcome: Outcome | null, code: number | null, hangs: boolean, stderr: string }>}
 */
function start(task, { temporary, mark }) {
  const launcher = fileURLToPath(new URL('./launch.mjs', import.meta.url));
  const child = spawn(process.execPath, [launcher, JSON.stringify(task)], {
    env: { ...process.env, NODE_OPTIONS: '', TMPDIR: temporary, [MARK]: mark },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  let hangs = false;
  child.stdout.setEncoding('utf8').on('data', (text) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text) => (stderr += text));
  const timer = setTimeout(() => {
    hangs = true;
    for (const pid of marked(mark)) tryKill(pid);
  }, HANG_MS);
  return new Promise((resolve) => {
    child.on('close', (code) => {
      clearTimeout(timer);
      const line = stdout.split('\n').find((text) => text.startsWith('outcome '));
      const outcome = line === undefined ? null : /** @type {Outcome} */ (JSON.parse(line.slice('outcome '.length)));
      resolve({ outcome, code, hangs, stderr });
    });
  });
}

/** The first line of the report names the rank, the slot and the action; the exit code is that of the cause. @param {Fault} fault @param {Outcome} outcome @param {number | null} code */
function checkCause({ kind, cause }, { message = '', report = '', exitCode, places = [] }, code) {
  const signal = kind === 'kill' ? constants.signals.SIGKILL : kind === 'stop' ? constants.signals.SIGSTOP : 0;
  const wanted = signal === 0 ? 1 : 128 + signal;
  const why = { kill: 'SIGKILL', stop: 'it is stopped', throw: 'the injected fault', shape: 'stage ' }[kind];
  const place = places.find(({ rank }) => rank === cause.rank);
  const [first = ''] = report.split('\n');
  return [
    ...(first === message && first.startsWith(`rank ${cause.rank} failed`) ? [] : [`blames another: ${first}`]),
    ...(first.includes(`slot ${cause.slot} (${cause.action})`)
      ? []
      : [`does not name slot ${cause.slot} (${cause.action})`]),
    ...(first.includes(why) ? [] : [`does not say '${why}'`]),
    ...(/GLHF|\.cc:\d/.test(report) ? ['shows what gloo adds'] : []),
    ...(place?.step === cause.step ? [] : [`the digest says step ${place?.step}, it was ${cause.step}`]),
    ...(code === wanted && exitCode === wanted ? [] : [`exit code ${code} (${exitCode}), expected ${wanted}`]),
  ];
}

/** Every other rank says whom it waited for, in its own error or in the digest, or was at work when it was ended. @param {Fault} fault @param {Outcome} outcome */
function accountForOthers({ ranks, cause }, { failures = [], places = [] }) {
  const problems = /** @type {string[]} */ ([]);
  const others = /** @type {Record<string, number>} */ ({});
  for (let rank = 0; rank < ranks; rank++) {
    if (rank === cause.rank) continue;
    const failure = failures.find((one) => one.rank === rank);
    const place = places.find((one) => one.rank === rank);
    const how = accountFor(rank, failure, place);
    if (how === null) problems.push(`rank ${rank} is not accounted for: ${JSON.stringify({ failure, place })}`);
    else others[how] = (others[how] ?? 0) + 1;
  }
  return { problems, others };
}

/** @param {number} rank @param {Failure | undefined} failure @param {Place | undefined} place */
function accountFor(rank, failure, place) {
  if (failure === undefined) return 'done';
  const own = new RegExp(
    `^rank ${rank}, slot \\d+ \\(.+?\\)(?: waiting for \\S+ from rank \\d+|: Channel\\.send .* to rank \\d+)`,
  );
  if (!failure.ended && own.test(failure.message)) return 'own error';
  if (place?.state === 'waiting') return 'digest';
  // Between steps: the beginning, or the sum of tied gradients.
  if (!failure.ended && /in group '.*': rank \d+ .*rank \d+/.test(failure.message)) return 'own error between slots';
  if (failure.ended && (place?.state === 'working' || place?.state === 'stopped')) return 'ended at work';
  return null;
}

/** No process, no file. @param {string} mark @param {string} temporary @param {string | undefined} statusFile @returns {Promise<string[]>} */
async function checkLeft(mark, temporary, statusFile) {
  const folder = statusFile === undefined ? undefined : dirname(statusFile);
  const left = () => [...marked(mark), ...(folder === undefined ? [] : naming(folder))];
  // The shell that watches over the launcher ends by itself, after it.
  for (let i = 0; i < 100 && left().length > 0; i++) await new Promise((resolve) => setTimeout(resolve, 100));
  return [
    ...left().map((pid) => `process ${pid} is left: ${read(pid, 'cmdline')}`),
    ...(folder !== undefined && existsSync(folder) ? [`${folder} is left`] : []),
    ...readdirSync(temporary).map((file) => `the temporary file ${file} is left`),
  ];
}

/** Processes with the mark in their environment. @param {string} mark */
function marked(mark) {
  return pids().filter((pid) => read(pid, 'environ').includes(`${MARK}=${mark}`));
}

/** Processes that were given the name of a folder. @param {string} folder */
function naming(folder) {
  return pids().filter((pid) => read(pid, 'cmdline').includes(folder));
}

function pids() {
  return readdirSync('/proc').filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
}

/** @param {string} pid @param {string} file */
function read(pid, file) {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8').replaceAll('\0', ' ');
  } catch {
    return '';
  }
}

/** @param {string} pid */
function tryKill(pid) {
  try {
    process.kill(Number(pid), 'SIGKILL');
  } catch {
    // it is gone
  }
}
