/** @file The start of a step: what it was given is checked and cut, and replicas agree on it before anybody computes. */
import type { DataParallel, Readiness } from '../parallel/data-parallel.ts';
import { stepKind } from '../parallel/step-kind.ts';
import { noWork, type Preparing, prepareWork } from './batch.ts';
import type { StepInput } from './capture.ts';
import { StepRefused } from './row/refusal.ts';
import type { StepWork } from './row/step-state.ts';
import type { Ties } from './ties.ts';

/** Who starts a step, and how it ends where that cannot be. */
export interface Starting extends Omit<Preparing, 'totalRows' | 'replicas'> {
  /** The rank as others are told. */
  readonly toldRank: number;
  readonly parallel: DataParallel | null;
  /** How gradients were clipped since the last step; empty once replicas have agreed on it. */
  readonly clips: string[];
  /** What is summed over the stages after a training step. */
  readonly ties: Ties | null;
  /** What was wrong with the call itself, where other ranks must learn of it. */
  readonly wrong: Error | null;
  /** Whether the ranks can go on when this one refuses the step. */
  readonly mayRefuse: (error: unknown) => boolean;
  /** Nothing fits together any more. */
  readonly giveUp: (error: unknown) => void;
}

/** The work of a step, and why this rank refuses it; null where it does not. */
export function startWork(
  input: StepInput,
  starting: Starting,
): { readonly work: StepWork; readonly refused: Error | null } {
  const { stages, parallel, training, clips, toldRank, ties } = starting;
  let hasAgreed = parallel === null;
  const holdsLast = stages.some((stage) => stage.isLast);
  const sync = input.options.sync !== false;
  const making = { training, sync, divisor: holdsLast ? input.options.divisor : undefined, clips };
  const own =
    parallel === null
      ? []
      : stages.map(({ stageIndex, module }) => ({ stageIndex, module, parameters: module.parameters() }));
  const kind = parallel === null ? null : stepKind(own, making);
  const agree = (ready: Omit<Readiness, 'kind'>): Omit<Readiness, 'kind'> => {
    hasAgreed = true;
    if (parallel === null || kind === null) return ready;
    try {
      return parallel.agree({ ...ready, kind }, training);
    } catch (error) {
      starting.giveUp(error);
      throw error;
    } finally {
      if (training) clips.length = 0;
    }
  };
  // Replicas that cannot begin are known before anybody computes.
  const totalRows = (rows: number): number => {
    const { refusal: reason, rows: total } = agree({ refusal: null, rows });
    if (reason !== null) throw new StepRefused(toldRank, reason);
    return total;
  };
  const replicas = training ? (parallel?.groups ?? []).reduce((product, { size }) => product * size, 1) : 1;
  const preparing: Preparing = { ...starting, totalRows, replicas };
  let refused = starting.wrong;
  let work = noWork(input, preparing);
  try {
    if (refused === null && training) parallel?.checkLearned(own);
    if (refused === null && training) ties?.check();
    if (refused === null) work = prepareWork(input, preparing);
    if (refused === null && !hasAgreed) totalRows(0);
  } catch (error) {
    if (!starting.mayRefuse(error) || !(error instanceof Error)) throw error;
    refused = error;
  }
  if (!hasAgreed) agree({ refusal: refused === null ? null : refusalReason(toldRank, refused), rows: 0 });
  return { work, refused };
}

/** Why a rank refuses a step, as other ranks are told. */
export function refusalReason(rank: number, error: Error): string {
  return `rank ${rank}: ${error.message}`;
}
