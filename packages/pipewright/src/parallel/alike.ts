/** @file What all ranks of a group must have alike: compared line by line, and the first difference is named on all of them. */
import type { distributed } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';

/** A line: what it is about, and what this rank has of it. */
export type Line = readonly [subject: string, has: string];

/** Whose lines are compared, and what to do where they differ. */
export interface Comparison {
  /** The function that compares. */
  readonly where: string;
  readonly group: distributed.ProcessGroup;
  /** The way out. */
  readonly remedy: string;
}

/** Compares the lines of all ranks of a group; all of them fail, or none. */
export function compareLines(lines: readonly Line[], { where, group, remedy }: Comparison): void {
  if (group.size === 1) return;
  const all = group.allGatherObject(lines as unknown as distributed.Json) as unknown as (readonly Line[])[];
  const [first] = all as [readonly Line[]];
  for (const [rank, other] of all.entries()) {
    for (let i = 0; i < Math.max(first.length, other.length); i++) {
      const [here, there] = [first[i], other[i]];
      if (here?.[0] === there?.[0] && here?.[1] === there?.[1]) continue;
      waitForVerdicts(group);
      throw new PipelineError('NO_AGREEMENT', `${where}: ${difference(there, here, rank)}; ${remedy}`, {
        group: group.name,
      });
    }
  }
}

/** Until all ranks have compared: one that gives up earlier would end the exchange under the others. */
function waitForVerdicts(group: distributed.ProcessGroup): void {
  try {
    group.barrier();
  } catch {
    // Another rank has seen this one here, and has given up already.
  }
}

function difference(there: Line | undefined, here: Line | undefined, rank: number): string {
  if (there === undefined || here === undefined || there[0] !== here[0]) {
    const told = (line: Line | undefined, of: number): string =>
      line === undefined ? `rank ${of} has nothing more` : `rank ${of} has ${line[0]}, ${line[1]}`;
    return `${told(there, rank)}, where ${told(here, 0)}`;
  }
  return `${there[0]} is ${there[1]} on rank ${rank} and ${here[1]} on rank 0`;
}

/** A text as a number below 2^16: equal for equal texts, and with all but certainty only for those. */
export function codeOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return ((hash >>> 16) ^ hash) & 0xffff;
}
