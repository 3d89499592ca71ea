// @ts-check
/**
 * @file A test file that hangs is ended: after a quarter of an hour its process and all that it started are shown and killed,
 * so that the run goes on, names the file, and ends red instead of never.
 */
import { readdirSync, readFileSync } from 'node:fs';

const limitMs = 60_000 * Number(process.env['PIPEWRIGHT_TEST_FILE_MINUTES'] ?? 15);

/** A reporter of vitest. */
export default class HangReporter {
  /** @type {Map<string, { name: string, since: number, tests: Set<string> }>} files under way, with their tests under way */
  running = new Map();
  /** @type {ReturnType<typeof setInterval> | undefined} */
  timer;

  onTestRunStart() {
    this.timer = setInterval(() => this.look(), Math.min(5000, limitMs / 2)).unref();
  }

  /** @param {import('vitest/node').TestModule} file */
  onTestModuleStart(file) {
    this.running.set(file.id, { name: file.moduleId, since: performance.now(), tests: new Set() });
  }

  /** @param {import('vitest/node').TestCase} test */
  onTestCaseReady(test) {
    this.running.get(test.module.id)?.tests.add(test.fullName);
  }

  /** @param {import('vitest/node').TestCase} test */
  onTestCaseResult(test) {
    this.running.get(test.module.id)?.tests.delete(test.fullName);
  }

  /** @param {import('vitest/node').TestModule} file */
  onTestModuleEnd(file) {
    this.running.delete(file.id);
  }

  onTestRunEnd() {
    clearInterval(this.timer);
  }

  look() {
    const late = [...this.running.values()].filter(({ since }) => performance.now() - since > limitMs);
    if (late.length === 0) return;
    for (const { name, tests } of late)
      console.error(`hangs since ${limitMs / 60_000} minutes: ${name}, in ${[...tests].join('; ') || 'no test'}`);
    const all = processes();
    for (const { pid, ageMs } of all.filter(({ parent }) => parent === process.pid))
      if (ageMs > limitMs) {
        const family = withDescendants(all, pid);
        for (const one of family)
          console.error(`  ${one.pid} (of ${one.parent}) ${one.state} ${one.place} ${one.command}`);
        for (const one of family.reverse()) end(one.pid);
      }
    for (const [id, { since }] of this.running) if (performance.now() - since > limitMs) this.running.delete(id);
  }
}

/** @typedef {{ pid: number, parent: number, state: string, ageMs: number, place: string, command: string }} Process */

/** The processes of this machine, on Linux. @returns {Process[]} */
function processes() {
  const ticksPerSecond = 100;
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const read = (/** @type {string} */ what) => readFileSync(`/proc/${name}/${what}`, 'utf8');
        const fields = read('stat')
          .replace(/^.*\) /, '')
          .split(' ');
        const upSeconds = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]);
        return {
          pid: Number(name),
          parent: Number(fields[1]),
          state: fields[0] ?? '',
          ageMs: 1000 * (upSeconds - Number(fields[19]) / ticksPerSecond),
          place: read('wchan'),
          command: read('cmdline').replaceAll('\0', ' ').slice(0, 300),
        };
      } catch {
        return []; // it has ended meanwhile
      }
    });
}

/** @param {readonly Process[]} all @param {number} pid @returns {Process[]} */
function withDescendants(all, pid) {
  const own = all.filter((one) => one.pid === pid);
  return [...own, ...all.filter(({ parent }) => parent === pid).flatMap((child) => withDescendants(all, child.pid))];
}

/** @param {number} pid */
function end(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended meanwhile.
  }
}
