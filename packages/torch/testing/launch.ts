/** @file Starts the ranks of `ranks.mjs` as threads or processes, for tests. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type RankEnd, rankEnvironments, runProgram } from './rank-process.ts';

const ranks = new URL('./ranks.mjs', import.meta.url);

/** What a rank is to do: the name of a scenario of `ranks.mjs`, and its arguments. */
export interface RankData {
  readonly scenario?: string;
  /** Several in one go; the result is then an object by name. */
  readonly scenarios?: readonly string[];
  readonly [key: string]: unknown;
}

type Distributed = typeof import('../src/distributed/index.ts');

/** The compiled package: threads and processes can run nothing else. */
export async function loadBuilt(): Promise<Distributed> {
  return (await import(new URL('../dist/distributed/index.js', import.meta.url).href)) as Distributed;
}

/** Runs a scenario on threads and returns the results by rank. */
export async function runThreads(count: number, data: RankData, options?: object): Promise<unknown[]> {
  const { spawnThreads } = await loadBuilt();
  return spawnThreads(count, ranks, data, options).done;
}

/** Starts a scenario on threads. */
export async function startThreads(
  count: number,
  data: RankData,
  options?: object,
): Promise<ReturnType<Distributed['spawnThreads']>> {
  const { spawnThreads } = await loadBuilt();
  return spawnThreads(count, ranks, data, options);
}

/** Runs a scenario on processes that find each other through TCP or a file, and returns how each ended. */
export async function runProcesses(
  count: number,
  data: RankData,
  rendezvous: 'tcp' | 'file' = 'tcp',
): Promise<RankEnd[]> {
  const folder = mkdtempSync(join(tmpdir(), 'pipewright-'));
  try {
    const file = rendezvous === 'file' ? { file: join(folder, 'store') } : {};
    const args = [JSON.stringify({ ...data, ...file })];
    return await Promise.all((await rankEnvironments(count)).map((env) => runProgram(ranks, args, env)));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Runs a scenario on processes and returns the results by rank; an error where one failed. */
export async function processResults(
  count: number,
  data: RankData,
  rendezvous: 'tcp' | 'file' = 'tcp',
): Promise<unknown[]> {
  const ends = await runProcesses(count, data, rendezvous);
  const failed = ends.findIndex((end) => end.code !== 0);
  if (failed >= 0)
    throw new Error(`rank ${failed} ended with ${ends[failed]?.code ?? ends[failed]?.signal}: ${ends[failed]?.stderr}`);
  return ends.map((end) => end.result);
}
