// @ts-check
/** @file Programs that are timed against each other in turns, so that what else the machine does meets all of them. */
import { execFileSync, spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** @typedef {(pipe: string) => { command: string, args: string[] }} Program */
/** @typedef {{ times: number[], peakMiB: number, why?: string | null }} Side */

/** The value a share of the way through the sorted ones. @param {number[]} values @param {number} share */
function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
/** @param {number[]} values */
export function median(values) {
  return quantile(values, 0.5);
}

/** The ratio of the medians and, in brackets, the middle half of the ratios turn by turn. @param {Side} one @param {Side} other */
export function ratios(one, other) {
  const turns = one.times.map((time, i) => time / (other.times[i] ?? Number.NaN));
  const middle = [0.25, 0.5, 0.75].map((share) => quantile(turns, share).toFixed(3));
  return `${(median(one.times) / median(other.times)).toFixed(3)} (turn by turn ${middle.join(' ')})`;
}

/** Turns that are not counted. */
export const WARMUP = 2;

/**
 * Starts all programs and lets one after the other take a turn of `burst` steps, in changing order; a turn's time is the
 * median of its steps. A program waits for a byte from a named pipe before each turn and writes a line after each step; its last
 * line is its report.
 * @param {number} turns
 * @param {number} burst
 * @param {Record<string, Program>} programs
 * @returns {Promise<Record<string, Side>>}
 */
export async function inTurns(turns, burst, programs) {
  const folder = mkdtempSync(join(tmpdir(), 'pipewright-bench-'));
  const running = Object.entries(programs).map(([name, program], i) => {
    const path = join(folder, `${i}`);
    execFileSync('mkfifo', [path]);
    const { command, args } = program(path);
    const child = spawn(command, args, {
      env: { ...process.env, OMP_NUM_THREADS: '1', PYTHONWARNINGS: 'ignore' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let complaint = '';
    child.stderr.on('data', (data) => {
      complaint = (complaint + data).slice(-2000);
    });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const next = async () => {
      for (;;) {
        const { value, done } = await lines.next();
        if (done) throw new Error(`${command} ${args[0]} ended early: ${complaint}`);
        if (value.startsWith('{')) return JSON.parse(value);
      }
    };
    return { name, child, next, pace: openSync(path, 'r+'), times: /** @type {number[]} */ ([]) };
  });
  try {
    for (let turn = 0; turn < WARMUP + turns; turn++) {
      for (const side of turn % 2 === 0 ? running : running.toReversed()) {
        writeSync(side.pace, '.');
        /** @type {number[]} */
        const steps = [];
        while (steps.length < burst) steps.push((await side.next()).ms);
        if (turn >= WARMUP) side.times.push(median(steps));
      }
    }
    /** @type {Record<string, Side>} */
    const result = {};
    for (const { name, next, times } of running) result[name] = { ...(await next()), times };
    return result;
  } finally {
    for (const { child, pace } of running) {
      child.kill();
      child.stdout.destroy();
      child.stderr.destroy();
      closeSync(pace);
    }
    rmSync(folder, { recursive: true });
  }
}
