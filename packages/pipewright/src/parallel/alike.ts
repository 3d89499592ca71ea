/** @file Compares what must be the same on all ranks of a group, line by line; all of them report the first difference. */
import type { distributed } from '@pipewright/torch';
import { PipelineError } from '../base/errors.ts';

/** A line: its subject, and what this rank has. */
export type Line = readonly [subject: string, has: string];

/** Which ranks compare, and what the error says. */
export interface Comparison {
  /** The function that compares. */
  readonly where: string;
  readonly group: distributed.ProcessGroup;
  /** How to repair a difference. */
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

/** Waits until all ranks have compared: a rank that fails earlier would close the group while others still receive. */
function waitForVerdicts(group: distributed.ProcessGroup): void {
  try {
    group.barrier();
  } catch {
    // Another rank has left the barrier and has failed already.
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

/** A hash of a text, 16 bits. */
export function codeOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return ((hash >>> 16) ^ hash) & 0xffff;
}
