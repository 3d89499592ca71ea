/** @file A job of the command `pipewright`, for tests that watch it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { afterEach } from 'vitest';

/** The full path of a file of the repository. */
export const path = (name: string): string => fileURLToPath(new URL(`../../${name}`, import.meta.url));

/** Longest life of a job, in milliseconds. */
export const mostMs = 240_000;

/** A job with all its processes, which end with it or after a while. */
export class Job {
  errors = '';
  code: number | null = null;
  private readonly child: ChildProcess;
  private readonly timer: NodeJS.Timeout;

  constructor(args: readonly string[]) {
    this.child = spawn(process.execPath, [path('packages/cli/bin/pipewright.js'), ...args], {
      detached: true,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    this.child.stderr?.on('data', (text: Buffer) => (this.errors += text.toString()));
    this.child.on('exit', (code) => (this.code = code ?? -1));
    this.timer = setTimeout(() => this.end(), mostMs);
  }

  /** Ends all processes of the job. */
  end(): void {
    clearTimeout(this.timer);
    try {
      process.kill(-this.child.pid!, 'SIGKILL');
    } catch {
      // they have ended
    }
  }
}

/** How long a page is looked at until it says what it is to say. */
export const wait = { timeout: 120_000, interval: 250 };

/** Starts the job of each test, which ends with the test. */
export function useJob(): (args: readonly string[]) => Job {
  let job: Job | null = null;
  afterEach(() => {
    job?.end();
    job = null;
  });
  return (args) => (job = new Job(args));
}
