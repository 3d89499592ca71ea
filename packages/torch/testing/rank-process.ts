/** @file A process of a test that runs a rank, or several as threads, and prints a line with its result. */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { freePort } from '../src/distributed/free-port.ts';

/** How a process ended. */
export interface RankEnd {
  /** What it printed after `result`; undefined where it printed no such line. */
  readonly result: unknown;
  readonly code: number | null;
  readonly signal: string | null;
  readonly stderr: string;
}

/** How long a program of ranks may take: less than a test, so that nothing is left of it. */
const LIMIT_MS = 540_000;

/** Runs a program and returns how it ended. */
export function runProgram(
  program: URL,
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<RankEnd> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [fileURLToPath(program), ...args], {
      env: { ...process.env, NODE_OPTIONS: '', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: LIMIT_MS,
      killSignal: 'SIGKILL',
    });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
    child.on('error', reject);
    child.on('close', (code, signal) => {
      const line = stdout.split('\n').find((text) => text.startsWith('result '));
      resolve({ result: line === undefined ? undefined : JSON.parse(line.slice(7) || 'null'), code, signal, stderr });
    });
  });
}

/** The environment of each of so many ranks that are processes of this machine and meet at a free port. */
export async function rankEnvironments(count: number): Promise<Record<string, string>[]> {
  const port = await freePort();
  return Array.from({ length: count }, (_, rank) => ({
    RANK: String(rank),
    WORLD_SIZE: String(count),
    MASTER_ADDR: '127.0.0.1',
    MASTER_PORT: String(port),
    PIPEWRIGHT_THREADS: '1',
  }));
}
