/** @file The start of a step: its arguments are checked and cut into microbatches, and replicas agree on it before anything is computed. */
import type { DataParallel, Readiness } from '../parallel/data-parallel.ts';
import { stepKind } from '../parallel/step-kind.ts';
import { noWork, type Preparing, prepareWork } from './batch.ts';
import type { StepInput } from './capture.ts';
import type { Ties } from './gradients/ties.ts';
import { StepRefused } from './row/refusal.ts';
import type { StepWork } from './row/step-state.ts';

/** The rank that starts a step, and what it does when it cannot. */
export interface Starting extends Omit<Preparing, 'totalRows' | 'replicas'> {
  /** The rank for messages: among all ranks where there are replicas or shards. */
  readonly globalRank: number;
  readonly parallel: DataParallel | null;
  /** How gradients were clipped since the last step; empty once replicas have agreed on it. */
  readonly clips: string[];
  /** Tied parameters, whose gradients are summed over the stages after a training step. */
  readonly ties: Ties | null;
  /** Why the call itself is refused, where other ranks must learn of it. */
  readonly wrong: Error | null;
  /** Whether the ranks can go on when this one refuses the step. */
  readonly mayRefuse: (error: unknown) => boolean;
  /** Called when the ranks have failed to agree, so that no step can follow. */
  readonly giveUp: (error: unknown) => void;
}

/** The work of a step, and the error if this rank refuses it. */
export function startWork(
  input: StepInput,
  starting: Starting,
): { readonly work: StepWork; readonly refused: Error | null } {
  const { stages, parallel, training, clips, globalRank, ties } = starting;
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
  const totalRows = (rows: number): number => {
    const { refusal: reason, rows: total } = agree({ refusal: null, rows });
    if (reason !== null) throw new StepRefused(globalRank, reason);
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
  if (!hasAgreed) agree({ refusal: refused === null ? null : refusalReason(globalRank, refused), rows: 0 });
  return { work, refused };
}

/** The reason of a refusal, for the other ranks. */
export function refusalReason(rank: number, error: Error): string {
  return `rank ${rank}: ${error.message}`;
}
