/**
 * @file The guard ends all ranks when the launcher is killed: a shell waits for the end of a pipe that only the launcher holds, then
 * kills the ranks. It works while these are blocked or stopped and could not notice the end of the launcher themselves.
 */
import { spawn } from 'node:child_process';

/** Watches over processes. */
export interface Guard {
  /** Kills these, with their children, if the launcher dies. */
  watch(pids: readonly number[]): void;
  /** Called when the launcher has ended all ranks itself. */
  release(): void;
}

const script = [
  "trap '' INT TERM HUP",
  'ranks=',
  'while read -r line; do ranks=$line; done',
  '[ -z "$ranks" ] || kill -s KILL -- $ranks 2>/dev/null',
  '[ -z "$1" ] || rm -rf -- "$1"',
].join('\n');

/** Starts the guard; `folder` is removed as well. Where there is no shell, ranks notice the end of their launcher when they are not blocked. */
export function startGuard(folder: string): Guard {
  const shell = spawn('/bin/sh', ['-c', script, 'pipewright-guard', folder], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
    env: { PATH: process.env['PATH'] ?? '/usr/bin:/bin' },
  });
  shell.on('error', () => undefined);
  shell.stdin.on('error', () => undefined);
  shell.unref();
  (shell.stdin as unknown as { unref(): void }).unref();
  return {
    watch: (pids) => {
      shell.stdin.write(`${pids.map((pid) => `-${pid}`).join(' ')}\n`);
    },
    release: () => {
      shell.stdin.end('\n');
    },
  };
}
