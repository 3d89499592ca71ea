import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { anySchedule } from '../../testing/any-schedule.ts';
import { lower } from '../lower/lower.ts';
import { Schedule } from '../model/schedule.ts';
import { type ValidateOptions, validate } from './validate.ts';
import { type ValidationRule, validationRules } from './violation.ts';

type Order = (string | null)[][];

/** A schedule to damage: its order as texts, and a random number below `n`. */
interface Patient {
  readonly schedule: Schedule;
  readonly order: Order;
  readonly pick: (n: number) => number;
}

interface Mutation {
  readonly rule: ValidationRule;
  /** What is damaged: an order of compute, or a lowered one. */
  readonly on: 'compute' | 'lowered';
  readonly what: string;
  /** The damaged order, with a changed head where the head is damaged; null where it cannot be done. */
  readonly damage: (patient: Patient) => Order | Partial<Schedule> | null;
  /** What the damaged order is checked for, given the sound one; default: nothing more. */
  readonly options?: (sound: Schedule) => ValidateOptions;
}

const cellsOf = (order: Order, pattern: RegExp): [rank: number, slot: number][] =>
  order.flatMap((row, rank) =>
    row.flatMap((cell, slot) => (cell !== null && pattern.test(cell) ? [[rank, slot] as [number, number]] : [])),
  );

/** Replaces, removes or inserts around one random cell that matches. */
function edit({ order, pick }: Patient, pattern: RegExp, change: (cell: string) => (string | null)[]): Order | null {
  const found = cellsOf(order, pattern);
  if (found.length === 0) return null;
  const [rank, slot] = found[pick(found.length)]!;
  return order.map((row, r) =>
    r === rank ? [...row.slice(0, slot), ...change(row[slot]!), ...row.slice(slot + 1)] : row,
  );
}

/** Moves the first cell that matches in a row to another place of the row. */
function move(
  { order, pick }: Patient,
  pattern: RegExp,
  to: (row: (string | null)[], from: number) => number,
): Order | null {
  const found = cellsOf(order, pattern);
  if (found.length === 0) return null;
  const [rank, slot] = found[pick(found.length)]!;
  const row = [...order[rank]!];
  const target = to(row, slot);
  if (target < 0 || target === slot) return null;
  const [cell] = row.splice(slot, 1);
  row.splice(target, 0, cell!);
  return order.map((other, r) => (r === rank ? row : other));
}

const numbers = (cell: string): [stage: number, microbatch: number] => {
  const match = /^(\d+)[A-Z_]+?(\d*)$/.exec(cell)!;
  return [Number(match[1]), Number(match[2])];
};

const mutations: Mutation[] = [
  {
    rule: 'stage-range',
    on: 'compute',
    what: 'a stage beyond the last',
    damage: (p) => edit(p, /^\d+F/, (cell) => [`${p.schedule.stages}F${numbers(cell)[1]}`]),
  },
  {
    rule: 'microbatch-range',
    on: 'compute',
    what: 'a microbatch beyond the last',
    damage: (p) => edit(p, /^\d+F/, (cell) => [`${numbers(cell)[0]}F${p.schedule.microbatches}`]),
  },
  {
    rule: 'composite',
    on: 'compute',
    what: 'a composite of one part',
    damage: (p) => edit(p, /^\d+F/, (cell) => [`(${cell})OVERLAP_F_B`]),
  },
  {
    rule: 'composite',
    on: 'lowered',
    what: 'a send in a composite',
    damage: (p) => edit(p, /^\d+SEND_F/, (cell) => [`(${cell};${cell})OVERLAP_F_B`]),
  },
  {
    rule: 'placement',
    on: 'compute',
    what: 'an action on the wrong rank',
    damage: (p) => {
      const from = p.order.findIndex((row) => row.some((cell) => cell !== null));
      const cell = p.order[from]!.find((c) => c !== null)!;
      return p.order.map((row, r) =>
        r === from ? row.filter((c) => c !== cell) : r === (from + 1) % p.order.length ? [...row, cell] : row,
      );
    },
  },
  {
    rule: 'placement',
    on: 'compute',
    what: 'a placement on no rank',
    damage: (p) => ({ stageToRank: p.schedule.stageToRank.map((r, s) => (s === 0 ? p.schedule.ranks : r)) }),
  },
  {
    rule: 'duplicate',
    on: 'compute',
    what: 'an action twice',
    damage: (p) => edit(p, /^\d+[FBIW]\d/, (cell) => [cell, cell]),
  },
  { rule: 'duplicate', on: 'lowered', what: 'a send twice', damage: (p) => edit(p, /SEND/, (cell) => [cell, cell]) },
  { rule: 'missing', on: 'compute', what: 'an action left out', damage: (p) => edit(p, /^\d+[FBW]\d/, () => []) },
  {
    rule: 'missing',
    on: 'compute',
    what: 'one more microbatch than there are',
    damage: (p) => ({ microbatches: p.schedule.microbatches + 1 }),
  },
  {
    rule: 'backward-kind',
    on: 'compute',
    what: 'full and split backward',
    damage: (p) => edit(p, /^\d+B/, (cell) => [cell.replace('B', 'I'), cell.replace('B', 'W'), cell]),
  },
  {
    rule: 'forward-first',
    on: 'compute',
    what: 'a backward at the front',
    damage: (p) => move(p, /^\d+[BI]\d/, () => 0),
  },
  {
    rule: 'input-first',
    on: 'compute',
    what: 'W before I',
    damage: (p) => move(p, /^\d+W/, (row, from) => row.indexOf(row[from]!.replace('W', 'I'))),
  },
  {
    rule: 'input-first',
    on: 'compute',
    what: 'B turned into W',
    damage: (p) => edit(p, /^\d+B/, (cell) => [cell.replace('B', 'W')]),
  },
  {
    rule: 'local-order',
    on: 'compute',
    what: 'a stage before the one that feeds it on the same rank',
    damage: (p) => {
      for (const [rank, row] of p.order.entries()) {
        for (const [slot, cell] of row.entries()) {
          if (cell === null || !/^\d+F/.test(cell)) continue;
          const [stage, m] = numbers(cell);
          const feeder = row.indexOf(`${stage - 1}F${m}`);
          if (feeder < 0) continue;
          const changed = [...row];
          changed.splice(slot, 1);
          changed.splice(feeder, 0, cell);
          return p.order.map((other, r) => (r === rank ? changed : other));
        }
      }
      return null;
    },
  },
  {
    rule: 'compute-deadlock',
    on: 'compute',
    what: 'a backward before a later forward that feeds its gradient',
    damage: (p) => {
      const row = p.order[0]!;
      const forward = row.indexOf('0F1');
      const backward = row.findIndex((cell) => cell !== null && /^0[BI]0$/.test(cell));
      const later = row.findIndex((cell) => cell !== null && /^0[BI]1$/.test(cell));
      if (forward < 0 || backward < 0 || later < backward) return null;
      // On rank 1 the forward of 1 first, on rank 0 the forward of 1 behind the backward of 0.
      const rank1 = p.schedule.stageToRank[1]!;
      const other = p.order[rank1]!;
      if (rank1 === 0 || !other.includes('1F1')) return null;
      const moved = row.filter((cell) => cell !== '0F1');
      moved.splice(moved.findIndex((cell) => cell !== null && /^0[BI]0$/.test(cell)) + 1, 0, '0F1');
      return p.order.map((cells, r) =>
        r === 0 ? moved : r === rank1 ? ['1F1', ...cells.filter((cell) => cell !== '1F1')] : cells,
      );
    },
  },
  { rule: 'send-first', on: 'lowered', what: 'a send at the front', damage: (p) => move(p, /SEND_/, () => 0) },
  {
    rule: 'receive-first',
    on: 'lowered',
    what: 'a receive at the end',
    damage: (p) => move(p, /RECV_/, (row) => row.length - 1),
  },
  { rule: 'receive-first', on: 'lowered', what: 'a receive left out', damage: (p) => edit(p, /RECV_/, () => []) },
  { rule: 'unmatched-send', on: 'lowered', what: 'a receive left out', damage: (p) => edit(p, /RECV_/, () => []) },
  { rule: 'unmatched-receive', on: 'lowered', what: 'a send left out', damage: (p) => edit(p, /SEND_/, () => []) },
  {
    rule: 'unmatched-send',
    on: 'lowered',
    what: 'a send nobody needs',
    damage: (p) =>
      cellsOf(p.order, /SEND/).length === 0
        ? null
        : edit(p, new RegExp(`^${p.schedule.stages - 1}F`), (cell) => [cell, cell.replace('F', 'SEND_F')]),
  },
  {
    rule: 'channel-order',
    on: 'lowered',
    what: 'two receives from one rank exchanged',
    damage: (p) => {
      for (const [r, row] of p.order.entries()) {
        const receives = row.flatMap((cell, slot) => (cell !== null && /^\d+RECV_F/.test(cell) ? [slot] : []));
        for (let i = 0; i + 1 < receives.length; i++) {
          const [a, b] = [receives[i]!, receives[i + 1]!];
          if (numbers(row[a]!)[0] !== numbers(row[b]!)[0]) continue;
          const changed = [...row];
          changed.splice(b, 1);
          changed.splice(a, 0, row[b]!);
          return p.order.map((cells, rank) => (rank === r ? changed : cells));
        }
      }
      return null;
    },
  },
  { rule: 'sharded', on: 'lowered', what: 'the first UNSHARD left out', damage: (p) => edit(p, /UNSHARD/, () => []) },
  {
    rule: 'sharded',
    on: 'lowered',
    what: 'RESHARD too early',
    damage: (p) => move(p, /^\d+[BW]\d/, (row) => row.length - 1),
  },
  {
    rule: 'shard-state',
    on: 'lowered',
    what: 'UNSHARD twice',
    damage: (p) => edit(p, /UNSHARD/, (cell) => [cell, cell]),
  },
  { rule: 'shard-state', on: 'lowered', what: 'RESHARD left out', damage: (p) => edit(p, /RESHARD/, () => []) },
  { rule: 'reduce-grad', on: 'lowered', what: 'REDUCE_GRAD at the front', damage: (p) => move(p, /REDUCE/, () => 0) },
  {
    rule: 'reduce-grad',
    on: 'lowered',
    what: 'REDUCE_GRAD twice',
    damage: (p) => edit(p, /REDUCE/, (cell) => [cell, cell]),
  },
  {
    rule: 'reduce-grad',
    on: 'lowered',
    what: 'one REDUCE_GRAD left out',
    damage: (p) => (cellsOf(p.order, /REDUCE/).length < 2 ? null : edit(p, /REDUCE/, () => [])),
  },
  {
    rule: 'collective-missing',
    on: 'lowered',
    what: 'all REDUCE_GRAD left out',
    damage: (p) => p.order.map((row) => row.filter((cell) => cell === null || !/REDUCE/.test(cell))),
    options: () => ({ dataParallel: { level: 'replicate' } }),
  },
  {
    rule: 'collective-order',
    on: 'lowered',
    what: 'an UNSHARD of a replica left out',
    damage: (p) => edit(p, /UNSHARD/, () => []),
    options: (sound) => ({ replicas: [sound] }),
  },
  {
    rule: 'resident-bytes',
    on: 'lowered',
    what: 'a limit below one stage',
    damage: (p) => p.order,
    options: () => ({ dataParallel: { level: 'parameters', parameters: 8, shards: 2, memoryLimit: 10 } }),
  },
  {
    rule: 'deadlock-buffered',
    on: 'lowered',
    what: 'a gradient awaited before the forward is sent',
    damage: (p) => move(p, /^0RECV_B0$/, () => 0),
  },
  {
    rule: 'deadlock-rendezvous',
    on: 'lowered',
    what: 'a gradient awaited before the forward is sent',
    damage: (p) => move(p, /^0RECV_B0$/, () => 0),
  },
];

/** Applies a mutation; null where it cannot be done. */
function damaged(mutation: Mutation, schedule: Schedule, pick: (n: number) => number): Schedule | null {
  const order = schedule.toJSON().order.map((row) => [...row]);
  const result = mutation.damage({ schedule, order, pick });
  if (result === null) return null;
  const { name, ranks, stages, microbatches, stageToRank } = schedule;
  return Schedule.from({
    name,
    ranks,
    stages,
    microbatches,
    stageToRank,
    ...(Array.isArray(result) ? { order: result } : { ...(result as object), order }),
  });
}

describe('every rule has a mutation that breaks it', () => {
  test('and no rule is without one', () => {
    expect([...new Set(mutations.map(({ rule }) => rule))].sort()).toEqual(Object.keys(validationRules).sort());
  });

  test.each(mutations.map((mutation) => [mutation.rule, mutation.what, mutation] as const))(
    '%s: %s',
    (rule, _what, mutation) => {
      let tried = 0;
      fc.assert(
        fc.property(anySchedule, fc.nat(), (schedule, seed) => {
          const victim = mutation.on === 'lowered' ? lower(schedule) : schedule;
          const changed = damaged(mutation, victim, (n) => seed % n);
          if (changed === null) return;
          tried++;
          const violations = validate(changed, mutation.options?.(victim));
          expect(
            violations.map((violation) => violation.rule),
            changed.toString(),
          ).toContain(rule);
          for (const { rank, slot, explanation } of violations) {
            expect(explanation.length).toBeGreaterThan(20);
            if (rank !== null && slot !== null && rank < changed.ranks)
              expect(slot).toBeLessThan(changed.rows[rank]!.length);
          }
        }),
        { numRuns: 60 },
      );
      expect(tried).toBeGreaterThan(3);
    },
  );
});
