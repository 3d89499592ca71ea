/**
 * @file The call that messages belong to: which one it is, and of what kind. It is part of every tag, so that no rank takes a
 * message of another call; ranks that call different things are told so, where they would wait for ever or compute nonsense.
 */
import { PipelineError } from '../../base/errors.ts';
import { STEP_TAGS } from '../../base/tags.ts';
import type { StepOptions } from '../options.ts';

/** A step or an evaluation, as all ranks make it together. */
export interface StepCall {
  /** How many were before it. */
  readonly number: number;
  /** What decides which messages there are: see `callKind`. */
  readonly kind: number;
}

const TRAINING = 1;
const EVERYWHERE = 2;
const UNSUMMED = 4;
const KINDS = 8;
/** So many calls can be told apart: tags end before those of copies. */
const NUMBERS = 2 ** 10;

/** The kind of a call: two calls of one kind have the same messages. `isSharded`: gradients are summed over ties only with `sync`. */
export function callKind(training: boolean, options: StepOptions, isSharded: boolean): number {
  return (
    (training ? TRAINING : 0) +
    (options.returnOutputs === 'everywhere' ? EVERYWHERE : 0) +
    (training && isSharded && options.sync === false ? UNSUMMED : 0)
  );
}

/** What is added to the tags of a call's messages. */
export function callTag({ number, kind }: StepCall): number {
  return STEP_TAGS * (kind + KINDS * (number % NUMBERS));
}

/** The same call, had it been of another kind. */
export function otherCalls({ number, kind }: StepCall): StepCall[] {
  return Array.from({ length: KINDS }, (_, other) => ({ number, kind: other })).filter((call) => call.kind !== kind);
}

/** Two ranks make different calls. */
export function differentCalls(here: RankCall, there: RankCall): PipelineError {
  return new PipelineError(
    'NO_AGREEMENT',
    `the ranks make different calls: rank ${here.rank} makes ${callText(here.kind)}, rank ${there.rank} ${callText(there.kind)}; make the same calls in the same order on all ranks, with the same returnOutputs and sync`,
    { rank: here.rank, other: there.rank },
  );
}

/** Which rank makes a call of which kind. */
interface RankCall {
  readonly rank: number;
  readonly kind: number;
}

function callText(kind: number): string {
  const options = [
    ...(kind & EVERYWHERE ? ["returnOutputs: 'everywhere'"] : []),
    ...(kind & UNSUMMED ? ['sync: false'] : []),
  ];
  return [kind & TRAINING ? 'a step' : 'an evaluation', ...options].join(', ');
}
