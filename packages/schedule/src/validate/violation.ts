/** @file What `validate` reports: one broken rule at one place. */

import type { Schedule } from '../model/schedule.ts';

/** Every rule a schedule must keep, with what it says. */
export const validationRules = {
  'stage-range': 'every action is of a stage the schedule has',
  'microbatch-range': 'compute and messages are of a microbatch the schedule has',
  composite: 'a composite overlaps at least two plain compute actions',
  placement: 'every stage is on the rank that stageToRank names, and on no other',
  duplicate: 'no action occurs twice',
  missing: 'every stage has a forward and, if anything has, a full or a split backward for every microbatch',
  'backward-kind': 'a backward is either full (B) or split (I and W), not both',
  'forward-first': 'a backward comes after its forward',
  'input-first': 'the weight half of a backward (W) comes after the input half (I)',
  'local-order': 'a stage runs after the stages on the same rank that feed it; backwards the other way round',
  'compute-deadlock': 'ranks do not wait for results of each other in a cycle',
  'send-first': 'a send comes after the compute that makes its data',
  'receive-first': 'compute that needs data of another rank comes after the receive',
  'unmatched-send': 'every send has a receive',
  'unmatched-receive': 'every receive has a send',
  'channel-order': 'between two ranks messages are received in the order in which they are sent',
  sharded: 'a stage computes only while it is unsharded',
  'shard-state': 'UNSHARD and RESHARD of a stage take turns, and RESHARD is last',
  'reduce-grad': 'a stage reduces its gradients once, after its last backward',
  'collective-missing': 'with data parallelism every stage has the collectives of its level',
  'collective-order': 'all replicas of a rank start the same collectives in the same order',
  'resident-bytes': 'a rank never holds more bytes of parameters than its limit',
  'deadlock-buffered': 'no deadlock even if sends never wait',
  'deadlock-rendezvous': 'no deadlock if sends and receives wait for each other',
} as const;

/** The name of a rule. */
export type ValidationRule = keyof typeof validationRules;

/** One rank of a cycle of ranks that wait for each other. */
export interface CycleStep {
  readonly rank: number;
  readonly slot: number;
  /** What the rank stands at. */
  readonly action: string;
  /** What it waits for, and where that is. */
  readonly waitsFor: { readonly rank: number; readonly slot: number | null; readonly action: string };
}

/** A broken rule. */
export interface Violation {
  readonly rule: ValidationRule;
  /** Where; null if it is nowhere in particular. */
  readonly rank: number | null;
  readonly slot: number | null;
  /** The text of the action there; null for missing actions. */
  readonly action: string | null;
  /** What is wrong, with the numbers, and what to do. */
  readonly explanation: string;
  /** For deadlocks: who waits for whom. */
  readonly cycle?: readonly CycleStep[];
}

/** Collects violations up to a limit. */
export class ViolationList {
  readonly found: Violation[] = [];
  private readonly schedule: Schedule;
  private readonly limit: number;

  constructor(schedule: Schedule, limit: number) {
    this.schedule = schedule;
    this.limit = limit;
  }

  get isFull(): boolean {
    return this.found.length >= this.limit;
  }

  /** Adds a violation at a cell; `says` completes "rank 1 slot 4 (1B0): …". */
  at(rule: ValidationRule, rank: number, slot: number, says: string): void {
    if (this.isFull) return;
    const word = this.schedule.rows[rank]?.[slot];
    const action = word === undefined ? null : this.schedule.format(word);
    this.found.push({ rule, rank, slot, action, explanation: `rank ${rank} slot ${slot} (${action}): ${says}` });
  }

  /** Adds a violation that is at no cell. */
  add(rule: ValidationRule, rank: number | null, says: string, cycle?: readonly CycleStep[]): void {
    if (this.isFull) return;
    const first = cycle?.[0];
    this.found.push({
      rule,
      rank: first?.rank ?? rank,
      slot: first?.slot ?? null,
      action: first?.action ?? null,
      explanation: says,
      ...(cycle === undefined ? {} : { cycle }),
    });
  }
}

/** A cycle of waiting in words. */
export function describeCycle(cycle: readonly CycleStep[]): string {
  return cycle
    .map(({ rank, slot, action, waitsFor }) => {
      const where =
        waitsFor.slot === null
          ? `, which rank ${waitsFor.rank} does not have`
          : ` at rank ${waitsFor.rank} slot ${waitsFor.slot}`;
      return `rank ${rank} slot ${slot} (${action}) waits for ${waitsFor.action}${where}`;
    })
    .join('; ');
}
