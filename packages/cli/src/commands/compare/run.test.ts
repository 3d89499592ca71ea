import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

describe('compare', () => {
  test('marks the best', () => {
    expect(cli('compare 1F1B Interleaved1F1B:2 ZBV -p 4 -m 8').out).toMatchInlineSnapshot(`
      "4 ranks, 8 microbatches; * marks the best of a column
      schedule           stages/rank  makespan   bubble   of span   peak memory
      1F1B                         1        33    27.3%     27.3%             4*
      Interleaved1F1B:2            2      28.5    15.8%     15.8%           5.5
      ZBVZeroBubble                2      25.5*    5.9%*     0.0%*            4*
      bubble: the share of the makespan in which ranks are idle; of span: the same, without the time
      before the first and after the last action of a rank

      busy share and peak memory per rank
      rank     1F1B  Interleaved1F1B:2  ZBVZeroBubble
      0     72.7% 4          84.2% 5.5        94.1% 4
      1     72.7% 3          84.2% 4.5        94.1% 4
      2     72.7% 2          84.2% 3.5        94.1% 4
      3     72.7% 1          84.2% 2.5        94.1% 4
      "
    `);
  });

  test('without names takes all schedules that can do the shape', () => {
    const { schedules, best } = JSON.parse(cli('compare -p 4 -m 8 -f json').out) as {
      schedules: { name: string; makespan: number; perRank: object[] }[];
      best: { makespan: string[] };
    };
    expect(schedules.find(({ name }) => name === 'GPipe')).toMatchObject({
      makespan: 33,
      stagesPerRank: 1,
      peakMemory: 8,
    });
    expect(schedules.find(({ name }) => name === 'Interleaved1F1B')).toMatchObject({ makespan: 28.5, peakMemory: 5.5 });
    expect(schedules.every(({ perRank }) => perRank.length === 4)).toBe(true);
    expect(best.makespan).toContain('ZBVZeroBubble');
  });

  test('a file in which ranks hold different numbers of stages does the same work', () => {
    const order = [
      ['0F0', '1F0', '1B0', '0B0'],
      ['2F0', '2B0'],
    ];
    writeFileSync(join(folder, 'uneven.json'), JSON.stringify({ order }));
    const { schedules } = JSON.parse(cli('compare uneven.json 1F1B -p 2 -m 1 -f json').out) as { schedules: object[] };
    expect(schedules).toMatchObject([
      { stagesPerRank: 1.5, makespan: expect.closeTo(6) },
      { stagesPerRank: 1, makespan: 6 },
    ]);
  });

  test('takes ranks and microbatches from the first file; flags that contradict a file are refused', () => {
    writeFileSync(join(folder, 'two.csv'), '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n');
    const { schedules } = JSON.parse(cli('compare two.csv 1F1B -s 1 -f json').out) as { schedules: object[] };
    expect(schedules).toMatchObject([
      { name: 'two.csv', ranks: 2, microbatches: 2 },
      { name: '1F1B', ranks: 2, microbatches: 2 },
    ]);
    for (const line of ['compare two.csv 1F1B -p 4', 'simulate two.csv -p 4', 'schedule two.csv --ranks 4'])
      expect(cli(line)).toEqual({
        code: 2,
        out: '',
        err: 'pipewright: --ranks is 4, but two.csv has 2; leave --ranks out, or name a schedule to build one\n',
      });
    expect(cli('simulate two.csv -p 2 -m 3').err).toContain('--microbatches is 3, but two.csv has 2');
    expect(cli('simulate two.csv -p 2 -m 2').code).toBe(0);
  });

  test('marks schedules that do not fit a memory limit; parameters do not count', () => {
    const { code, out, err } = cli('compare GPipe 1F1B ZB1P -p 4 -m 8 --memory-limit 4 --parameters 100');
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatch(/^GPipe .*108 +does not fit: 4 too much on rank 0$/m);
    expect(out).toMatch(/^1F1B .*104\*$/m);
    expect(out).toMatch(/^ZB1P .*\d\*? *$/m);
    expect(out.match(/does not fit/g)).toHaveLength(1);
    const all = cli('compare -p 4 -m 8 --memory-limit 3,3,3,3 -f json');
    expect(all.code).toBe(0);
    const { schedules, best } = JSON.parse(all.out) as { schedules: object[]; best: { makespan: string[] } };
    expect(schedules).toContainEqual(expect.objectContaining({ name: '1F1B', doesNotFit: { rank: 0, amount: 1 } }));
    expect(schedules).toContainEqual(expect.not.objectContaining({ doesNotFit: expect.anything() }));
    expect(best.makespan).not.toContain('ZBVZeroBubble');
    expect(cli('compare 1F1B -p 4 -m 8 --memory-limit 3,3')).toMatchObject({
      code: 2,
      err: expect.stringContaining('--memory-limit has 2 values for 4 ranks'),
    });
  });

  test('shortens many ranks, unless asked not to', () => {
    expect(cli('compare 1F1B -p 40 -m 40').out).toContain('(32 ranks not shown; --all-ranks shows them)');
    expect(cli('compare 1F1B -p 40 -m 40 --all-ranks').out.match(/^\d+ /gm)).toHaveLength(41);
  });

  test('asks for the shape, without naming a schedule that nobody named', () => {
    const err = 'pipewright: --ranks and --microbatches missing; for example --ranks 4 --microbatches 8\n';
    expect(cli('compare')).toEqual({ code: 2, out: '', err });
    expect(cli('compare -p 4').err).toContain('--microbatches missing; for example');
    expect(cli('compare 1F1B -p 4').err).toContain('--microbatches missing for 1F1B');
  });

  test('refuses costs per stage and odd numbers of stages', () => {
    expect(cli('compare 1F1B -p 4 -m 8 --F 1,1,1,1')).toMatchObject({
      code: 2,
      err: expect.stringContaining('one number per cost'),
    });
    expect(cli('compare 1F1B:x -p 4 -m 8')).toMatchObject({ code: 2, err: expect.stringContaining('after the colon') });
    expect(cli('compare 1F1B:3 -p 4 -m 8')).toMatchObject({
      code: 2,
      err: expect.stringContaining('1 stage per rank'),
    });
  });
});
