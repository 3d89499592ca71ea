/** @file What ranks compare at the beginning of a step, so that all of them decide alike. */
import { createHash } from 'node:crypto';
import type { distributed } from '@pipewright/torch';
import { differentCalls } from './call.ts';
import type { StepSignature } from './transport.ts';

const COMPARE = 0xd000_0000;
/** Why nobody goes on with a recording that several ranks make, once one of them has failed in it. */
export const GIVEN_UP = 'a rank has given up the recording';
/** What is said, by CUDA first, of everything in a recording that has failed elsewhere. */
const CONSEQUENCES = ['previous error during capture', GIVEN_UP];

/** A step as all ranks together know it: the same on every rank. */
export interface ComparedStep {
  /** What decides which messages there are, of all ranks. */
  readonly kind: string;
  /** That, and what all ranks were given. */
  readonly key: string;
  /** Why not all ranks would capture it; null where they would. */
  readonly captureProblem: string | null;
}

/** What all ranks say, by rank. */
export function exchange(group: distributed.ProcessGroup, value: distributed.Json): distributed.Json[] {
  for (let peer = 0; peer < group.size; peer++) if (peer !== group.rank) group.sendObject(value, peer, COMPARE);
  return Array.from({ length: group.size }, (_, peer) =>
    peer === group.rank ? value : group.recvObject(peer, { tag: COMPARE }),
  );
}

/** Compares a step with those of the other ranks; throws on all of them where they make different calls. */
export function compareSteps(
  group: distributed.ProcessGroup,
  { kind, call, inputs, capture }: StepSignature,
): ComparedStep {
  const mine = [hash(kind), hash(inputs), capture ?? null, call];
  const all = exchange(group, mine) as [string, string, string | null, number][];
  const first = all[0]![3];
  const rank = all.findIndex(([, , , other]) => other !== first);
  if (rank > 0) throw differentCalls({ rank, kind: all[rank]![3] }, { rank: 0, kind: first });
  const kinds = all.map(([each]) => each).join();
  const against = all.findIndex(([, , text]) => text !== '');
  return {
    kind: kinds,
    key: `${kinds} ${all.map(([, each]) => each).join()}`,
    captureProblem: against < 0 ? null : reasonOf(against, all[against]![2]),
  };
}

/** The first problem that a rank has, and which rank has it; null where none has one. */
export function firstProblem(group: distributed.ProcessGroup, problem: string | null): string | null {
  const all = exchange(group, problem) as (string | null)[];
  const isCause = (text: string | null): boolean =>
    text !== null && !CONSEQUENCES.some((consequence) => text.includes(consequence));
  const cause = all.findIndex(isCause);
  const rank = cause < 0 ? all.findIndex((text) => text !== null) : cause;
  if (rank < 0) return null;
  const text = all[rank]!;
  return /^rank \d+[:,] /.test(text) ? text : `rank ${rank}: ${text}`;
}

function reasonOf(rank: number, text: string | null): string {
  return text === null ? `rank ${rank} was not asked to capture` : `rank ${rank}: ${text}`;
}

function hash(text: string): string {
  return createHash('sha1').update(text).digest('base64');
}
