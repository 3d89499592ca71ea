import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { lower } from '../lower/lower.ts';
import { validate } from '../validate/validate.ts';
import { action, formatAction } from './action.ts';
import { formatCsv, parseCsv } from './csv.ts';
import { Schedule } from './schedule.ts';

const bfs = buildSchedule('LoopedBFS', { ranks: 2, stagesPerRank: 1, microbatches: 1, compat: 'torch' });

describe('CSV', () => {
  test("PyTorch's format: CR LF, empty cells for bubbles, a lone bubble quoted, an empty row an empty line", () => {
    expect(formatCsv(bfs)).toBe('0F0,,,0B0\r\n,1F0,1B0\r\n');
    expect(formatCsv({ order: [[null], [], ['0F0']] })).toBe('""\r\n\r\n0F0\r\n');
    expect(parseCsv('""\r\n\r\n0F0\r\n').toString()).toBe('.\n\n0F0');
    expect(parseCsv('0F0,,,0B0\n,1F0,1B0').equals(bfs)).toBe(true);
    expect(formatCsv(lower(bfs, { compat: 'torch' }), { format: 'compute_comms' })).toMatchInlineSnapshot(`
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD
      1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD
      "
    `);
  });

  test('ours: a header line with name and numbers', () => {
    const text = formatCsv(buildSchedule('1F1B', { ranks: 2, microbatches: 2 }), { format: 'pipewright' });
    expect(text).toMatchInlineSnapshot(`
      "#pipewright-schedule,version=1,name=1F1B,ranks=2,stages=2,microbatches=2,stageToRank=0 1
      0F0,0F1,,0B0,,0B1
      ,1F0,1B0,1F1,1B1
      "
    `);
    expect(parseCsv(text)).toMatchObject({ name: '1F1B', ranks: 2, stages: 2, microbatches: 2, stageToRank: [0, 1] });
  });

  test('any schedule survives both ways', () => {
    const cell = fc.oneof(
      fc.constant(null),
      fc
        .tuple(fc.constantFrom('F', 'I', 'W', 'B', 'SEND_F', 'RECV_B'), fc.nat(9), fc.nat(9))
        .map(([kind, stage, m]) => action(kind as 'F', stage, m)),
    );
    const name = fc.string({ maxLength: 6 }).map((text) => text.replaceAll(/[\r\n]/g, ' '));
    fc.assert(
      fc.property(fc.array(fc.array(cell, { maxLength: 5 }), { maxLength: 4 }), name, (order, label) => {
        const schedule = Schedule.from({ name: label, order, stages: 12, microbatches: 12 });
        const again = parseCsv(formatCsv(schedule, { format: 'pipewright' }));
        expect(again.name).toBe(label);
        expect(again.diff(schedule)).toEqual([]);
        const plain = formatCsv(schedule);
        // Without a header a schedule without cells cannot be told from an empty file, which is refused.
        if (plain.trim() === '') expect(() => parseCsv(plain)).toThrow('the text is empty');
        else expect(parseCsv(plain).toString()).toBe(schedule.toString());
      }),
    );
  });

  test('skip edges are in the header', () => {
    const schedule = buildSchedule('GPipe', { ranks: 3, microbatches: 1 }).with({
      edges: [
        [0, 1],
        [1, 2],
        [0, 2],
      ],
    });
    expect(parseCsv(formatCsv(schedule, { format: 'pipewright' })).edges).toEqual([
      [0, 1],
      [1, 2],
      [0, 2],
    ]);
  });

  test.each(['Interleaved1F1B', 'InterleavedZeroBubble', 'LoopedBFS', 'ZBVZeroBubble', 'DualPipeV'])(
    'files of PyTorch 2.15, whose waits for sends are passed over: %s',
    (name) => {
      const text = readFileSync(new URL(`../../../../testdata/csv/torch-2.15-${name}.csv`, import.meta.url), 'utf8');
      expect(text).toMatch(/WAIT_SEND_F0.*WAIT_REDUCE_GRAD.*WAIT_SEND_B/);
      const read = parseCsv(text, { format: 'compute_comms' });
      expect(validate(read)).toEqual([]);
      const ours = lower(buildSchedule(name, { ranks: 2, stagesPerRank: 2, microbatches: 4, compat: 'torch' }), {
        compat: 'torch',
      });
      const actions = (schedule: Schedule): string[][] => schedule.order.map((row) => row.map(formatAction).sort());
      expect(actions(read)).toEqual(actions(ours));
    },
  );

  test('strict by default, lenient as PyTorch on request; numbers can be given', () => {
    expect(() => parseCsv('0F0,0B0x')).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: parseCsv: line 1 cell 2: cannot read '0B0x': 'x' follows the action; expected a stage, a kind and a microbatch such as '2F0', or '(0F3;3B1)OVERLAP_F_B']`,
    );
    expect(parseCsv('0F0,0B0x', { lenient: true }).toString()).toBe('0F0 0B0');
    expect(parseCsv('0F0,0B0', { name: 'mine', stages: 2, microbatches: 3, stageToRank: [0, 0] })).toMatchObject({
      name: 'mine',
      stages: 2,
      microbatches: 3,
      stageToRank: [0, 0],
    });
  });

  test('refuses what a format does not hold', () => {
    const lowered = lower(bfs);
    expect(() => formatCsv(bfs, { format: 'compute_comms' })).toThrow(/is a bubble/);
    expect(() => formatCsv(lowered, { format: 'compute_only' })).toThrow(/use compute_comms/);
    expect(() => parseCsv('0F0,,0B0', { format: 'compute_comms' })).toThrow(/is a bubble/);
    expect(() => parseCsv('0F0,0SEND_F0', { format: 'compute_only' })).toThrow(/0SEND_F0/);
    expect(() => parseCsv('0F0', { format: 'pipewright' })).toThrow(/first line/);
    expect(() => formatCsv(bfs, { format: 'compute-only' as never })).toThrow(/did you mean 'compute_only'/);
    expect(() => parseCsv('"0F0')).toThrow(/a quoted cell does not end/);
    expect(() => parseCsv('#pipewright-schedule,version=2\n0F0')).toThrow(/version=2/);
    expect(() => parseCsv('#pipewright-schedule,version=1,ranks=x\n0F0')).toThrow(/ranks=x should be made of integers/);
    expect(() => parseCsv('#pipewright-schedule,version=1,colour=red\n0F0')).toThrow(/unknown field 'colour'/);
    expect(() => parseCsv(7 as never)).toThrow(/expected text/);
  });
});

test('an empty text is no schedule', () => {
  for (const text of ['', '\n', ' \r\n\n'])
    expect(() => parseCsv(text)).toThrow('parseCsv: the text is empty; write one line per rank');
});
