/** @file Starts the ranks of `ranks/training.mjs` as threads or processes, for tests. */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { freePort } from '@pipewright/torch/environment';

/** A training run of `ranks/training.mjs`. */
export interface TrainingCase {
  readonly schedule: string | object;
  readonly model: string;
  readonly ranks: number;
  readonly stages: number;
  readonly stageToRank: readonly number[];
  readonly microbatches: number;
  readonly rows: number;
  readonly accumulate?: number;
  readonly evaluate?: boolean;
  readonly sameBatch?: boolean;
  readonly scaleGrads?: boolean;
  readonly rate?: number;
  readonly clip?: number;
  readonly ready?: boolean;
  readonly device?: string;
  readonly capture?: boolean;
  readonly varyRows?: boolean;
  readonly lanes?: 'host';
  readonly messageShapes?: 'remembered' | 'announced';
}

/** What a training run gives: on the ranks only their own part. */
export interface TrainingResult {
  readonly losses: number[][];
  grads: Record<string, number[] | null>;
  weights: Record<string, number[] | null>;
  readonly evals: number[][];
  /** The outputs of the microbatches of the evaluations; where the last stage is. */
  readonly parts?: number[][];
  readonly norms: number[];
  inFlight?: number;
  readonly leaked?: number;
  captureProblem?: string | null;
}

const ranks = new URL('./ranks/training.mjs', import.meta.url);

/** The oracle: the same training without a pipeline, in this process. */
export async function trainPlainly(cases: readonly TrainingCase[]): Promise<TrainingResult[]> {
  const { plain } = (await import(ranks.href)) as { plain(one: TrainingCase): TrainingResult };
  return cases.map(plain);
}

/** Runs cases on thread ranks, in a process of their own; `results[rank][case]`. */
export async function trainOnThreads(count: number, cases: readonly TrainingCase[]): Promise<TrainingResult[][]> {
  return (await runRanks(ranks, [String(count), JSON.stringify(cases)])) as TrainingResult[][];
}

/** Runs cases on process ranks; `results[rank][case]`. */
export async function trainOnProcesses(count: number, cases: readonly TrainingCase[]): Promise<TrainingResult[][]> {
  const place = { WORLD_SIZE: String(count), MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(await freePort()) };
  return (await Promise.all(
    Array.from({ length: count }, (_, rank) =>
      runRanks(ranks, ['0', JSON.stringify(cases)], { ...place, RANK: String(rank), PIPEWRIGHT_THREADS: '1' }),
    ),
  )) as TrainingResult[][];
}

/** How long a program of ranks may take: less than a test, so that nothing is left of it. */
const LIMIT_MS = 540_000;

/** Runs a program of ranks and returns the result it prints. */
export function runRanks(script: URL, args: readonly string[], env: Record<string, string> = {}): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [fileURLToPath(script), ...args], {
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
      if (code === 0 && line !== undefined) resolve(JSON.parse(line.slice(7)));
      else reject(new Error(`rank ${env['RANK'] ?? ''} ended with ${code ?? signal}: ${stderr}`));
    });
  });
}
