/** @file Starts programs of ranks as threads or processes, for tests; that of most is `ranks/training.mjs`. */
import { rankEnvironments, runProgram } from '../../torch/testing/rank-process.ts';

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
  readonly steps?: number;
  readonly earlyGradients?: boolean;
  readonly alone?: boolean;
  readonly lanes?: 'host' | 'one stream';
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
export function trainOnThreads(count: number, cases: readonly TrainingCase[]): Promise<TrainingResult[][]> {
  return casesOnThreads(ranks, count, cases);
}

/** Runs cases on process ranks; `results[rank][case]`. */
export function trainOnProcesses(count: number, cases: readonly TrainingCase[]): Promise<TrainingResult[][]> {
  return casesOnProcesses(ranks, count, cases);
}

/** Runs the cases of a program on thread ranks, in a process of their own; `results[rank][case]`. */
export async function casesOnThreads<Result>(
  program: URL,
  count: number,
  cases: readonly unknown[],
): Promise<Result[][]> {
  return (await runRanks(program, [String(count), JSON.stringify(cases)])) as Result[][];
}

/** Runs the cases of a program on process ranks; `results[rank][case]`. */
export async function casesOnProcesses<Result>(
  program: URL,
  count: number,
  cases: readonly unknown[],
): Promise<Result[][]> {
  return (await Promise.all(await startProcesses(program, count, cases))) as Result[][];
}

/** Starts a process for each rank of a program; `more` adds to the environment of a rank. */
export async function startProcesses(
  program: URL,
  count: number,
  cases: readonly unknown[],
  more: (rank: number) => Record<string, string> = () => ({}),
): Promise<Promise<unknown>[]> {
  const args = ['0', JSON.stringify(cases)];
  return (await rankEnvironments(count)).map((env, rank) => runRanks(program, args, { ...env, ...more(rank) }));
}

/** Runs a program of ranks and returns the result it prints. */
export async function runRanks(
  program: URL,
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<unknown> {
  const { result, code, signal, stderr } = await runProgram(program, args, env);
  if (code === 0 && result !== undefined) return result;
  throw new Error(`rank ${env['RANK'] ?? ''} ended with ${code ?? signal}: ${stderr}`);
}
