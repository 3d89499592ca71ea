/** @file What replicas and shards must do the same in a step: otherwise their collectives do not match, or their parameters diverge. */
import type { nn } from '@pipewright/torch';
import { codeOf, type Line } from './alike.ts';

/** What a rank is about to do. */
export interface StepKind {
  /** A hash of what is done: ranks with different codes do different things. */
  readonly code: number;
  /** The same in words. */
  lines(): Line[];
}

/** The parameters of a stage at the beginning of a step, collected once for all checks. */
export interface StageParameters {
  readonly stageIndex: number;
  readonly module: nn.Module;
  readonly parameters: readonly nn.Parameter[];
}

/** What a step or an evaluation does. */
interface StepFacts {
  readonly training: boolean;
  /** Whether gradients are summed. */
  readonly sync: boolean;
  /** What losses are divided by, where the last stage is and one was given. */
  readonly divisor: number | undefined;
  /** How gradients were clipped since the step before. */
  readonly clips: readonly string[];
}

/** What a rank is about to do with its stages. */
export function stepKind(own: readonly StageParameters[], { training, sync, divisor, clips }: StepFacts): StepKind {
  const options = [...(sync ? [] : ['sync: false']), ...(divisor === undefined ? [] : [`divisor: ${divisor}`])];
  const call = training ? ['a step', ...options].join(', ') : 'an evaluation';
  const clipped = clips.length === 0 ? 'nothing' : clips.join(' and ');
  const learned = own.map(({ parameters }) => parameters.map(({ requiresGrad }) => (requiresGrad ? 1 : 0)).join(''));
  return {
    code: codeOf(`${call}, ${clipped}, ${learned.join(' ')}`),
    lines: () => [
      ['the call', call],
      ['what gradients were clipped by since the step before', clipped],
      ...own.flatMap(({ module }) =>
        module
          .namedParameters()
          .map(([name, { requiresGrad }]): Line => [`the parameter '${name}'`, requiresGrad ? 'learned' : 'frozen']),
      ),
    ],
  };
}
