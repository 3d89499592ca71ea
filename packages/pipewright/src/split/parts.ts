/** @file The result of splitting: a graph for every stage, and a root graph that calls them. */
import { checkCount } from '../base/checks.ts';
import type { Graph, ValueMeta } from '../graph/graph.ts';

/** An input of a stage. */
export interface PartInput {
  /** The name of its node in the unsplit graph. */
  readonly name: string;
  /** The stage that makes it, or null for an input of the model. */
  readonly stage: number | null;
  /** Which of that stage's outputs it is; for an input of the model, which of them. */
  readonly index: number;
  readonly meta: ValueMeta;
}

/** An output of a stage. */
export interface PartOutput {
  readonly name: string;
  readonly meta: ValueMeta;
  /** The stages that take it, ascending. */
  readonly to: readonly number[];
}

/** An attribute of a stage. */
export interface PartAttribute {
  /** Its qualified name. */
  readonly target: string;
  readonly role: 'parameter' | 'buffer';
  readonly persistent: boolean;
  readonly meta: ValueMeta;
}

/** One stage. Its graph has a placeholder per input and returns one value, or the list of its outputs. */
export interface StagePart {
  readonly index: number;
  /** `submod_pp_0` and so on. */
  readonly name: string;
  readonly graph: Graph;
  readonly inputs: readonly PartInput[];
  readonly outputs: readonly PartOutput[];
  readonly attributes: readonly PartAttribute[];
}

/** A graph split into stages. */
export interface SplitGraph {
  /** Calls the stages one after the other: what the whole model does. */
  readonly root: Graph;
  readonly stages: readonly StagePart[];
  /** The stage that holds the model's own tensor of a parameter that several stages hold, by canonical name. */
  readonly owners: ReadonlyMap<string, number>;
  /** Requests that were not followed, in words: borders that would have made an empty stage. */
  readonly notes: readonly string[];
}

/** What stands before the number in the name of a stage's module. */
export const STAGE_MODULE_PREFIX = 'submod_pp';

/** The name of a stage's module. @example stageModuleName(2) // 'submod_pp_2' */
export function stageModuleName(stage: number): string {
  return `${STAGE_MODULE_PREFIX}_${checkCount('stageModuleName', 'the stage', stage, 0)}`;
}
