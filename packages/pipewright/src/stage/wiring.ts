/** @file Where the inputs of stages come from: the stage before, or any earlier ones (skip connections). */
import type { StageEdge } from '@pipewright/schedule';
import { PipelineError } from '../base/errors.ts';
import { isList } from '../base/list.ts';

/**
 * One source of a stage's positional inputs: the output of an earlier stage, or one element of it.
 *
 * @example const skip: StageInput = { stage: 0, output: 'skip' } // element `skip` of what stage 0 returns
 */
export interface StageInput {
  /** The stage whose output it is. */
  readonly stage: number;
  /** Position or name of the element; left out: all of the output. */
  readonly output?: number | string | undefined;
  /** Give each element of an output that is an array as an input of its own. */
  readonly spread?: boolean | undefined;
}

/** What a stage tells the other ranks about itself. Plain JSON. */
export interface StageDescription {
  readonly stage: number;
  readonly inputs: readonly StageInput[];
  /** Tie name of each tied parameter, by parameter name. */
  readonly ties: Readonly<Record<string, string>>;
  /** Declared inputs and outputs, as texts such as `float32[4, 8]`; null where they are not declared. */
  readonly inputArgs: readonly string[] | null;
  readonly outputArgs: readonly string[] | null;
}

/** The inputs of a stage that names none: all that the stage before returns. */
export function defaultInputs(stage: number): readonly StageInput[] {
  return stage === 0 ? [] : [{ stage: stage - 1, spread: true }];
}

/** Refuses inputs that do not come from an earlier stage, or that cannot be told apart. */
export function checkInputs(stage: number, inputs: readonly StageInput[]): void {
  for (const input of inputs) {
    if (!Number.isInteger(input.stage) || input.stage < 0 || input.stage >= stage)
      throw new PipelineError(
        'BAD_WIRING',
        `PipelineStage ${stage}: an input comes from stage ${String(input.stage)}; inputs come from an earlier stage, 0 to ${stage - 1}`,
        { stage },
      );
    if (input.spread === true && inputs.filter((other) => other.stage === input.stage).length > 1)
      throw new PipelineError(
        'BAD_WIRING',
        `PipelineStage ${stage}: an input spreads the output of stage ${input.stage} and another takes a part of it; name the elements: { stage: ${input.stage}, output: 0 }, …`,
        { stage },
      );
  }
}

/** The stage graph of all stages: one edge for every pair of stages that exchange something. */
export function edgesOf(stages: readonly StageDescription[]): StageEdge[] {
  return stages.flatMap(({ stage, inputs }) => sourcesOf(inputs).map((source): StageEdge => [source, stage]));
}

/** The stages that inputs come from, each once, ascending. */
export function sourcesOf(inputs: readonly StageInput[]): number[] {
  return [...new Set(inputs.map((input) => input.stage))].sort((a, b) => a - b);
}

/** Whether edges are those of a chain: each stage feeds the next. */
export function isChain(edges: readonly StageEdge[], stages: number): boolean {
  return edges.length === stages - 1 && edges.every(([from, to]) => to === from + 1);
}

/** What one stage sends another: the elements that the other takes, in the order of its inputs. */
export function pick(output: unknown, wanted: readonly StageInput[], from: number, to: number): readonly unknown[] {
  const [only] = wanted;
  if (wanted.length === 1 && only?.spread === true) return isList(output) ? output : [output];
  return wanted.flatMap(({ output: key, spread }): readonly unknown[] => {
    if (spread === true) return isList(output) ? output : [output];
    if (key === undefined) return [output];
    const container = typeof output === 'object' && output !== null ? output : {};
    const value: unknown = container instanceof Map ? container.get(key) : Reflect.get(container, key);
    if (value === undefined && !(key in container)) {
      const keys = Object.keys(container);
      throw new PipelineError(
        'BAD_WIRING',
        `stage ${to} takes output ${JSON.stringify(key)} of stage ${from}, which returned ${keys.length === 0 ? 'one value' : `only ${keys.join(', ')}`}; return an array or object that has it`,
        { stage: from },
      );
    }
    return [value];
  });
}

/** The positional inputs of a stage from what each source sent. */
export function assemble(inputs: readonly StageInput[], valuesOf: (source: number) => readonly unknown[]): unknown[] {
  const [only] = inputs;
  if (only !== undefined && inputs.length === 1) return [...valuesOf(only.stage)];
  const taken = new Map<number, number>();
  return inputs.flatMap(({ stage, spread }) => {
    const values = valuesOf(stage);
    if (spread === true) return values;
    const next = taken.get(stage) ?? 0;
    taken.set(stage, next + 1);
    return [values[next]];
  });
}
