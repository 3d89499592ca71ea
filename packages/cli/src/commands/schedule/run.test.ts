import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

describe('schedule', () => {
  test('prints a table, a picture, a file for PyTorch, JSON', () => {
    expect(cli('schedule 1f1b -p 2 -m 2').out).toMatchInlineSnapshot(`
      "        Rank 0 Rank 1
      Step 0: 0F0          
      Step 1: 0F1    1F0   
      Step 2:        1B0   
      Step 3: 0B0    1F1   
      Step 4:        1B1   
      Step 5: 0B1          
      "
    `);
    expect(cli('schedule gpipe -p 2 -m 2 -f timeline --width 60').out).toMatchInlineSnapshot(`
      "GPipe: 2 ranks, 2 stages, 2 microbatches
      makespan 9; bubble 33.3% of the makespan, 33.3% of the span; peak memory 2
      rank 0 │F0─F1─·········B0────B1────│ busy  66.7%  peak 2
      rank 1 │···F0─F1─B0────B1────······│ busy  66.7%  peak 2
              0              5
      F Forward   B Full backward   · idle
      "
    `);
    expect(cli('schedule gpipe -p 2 -m 1 --lower -f json').out).toMatchInlineSnapshot(`
      "{
        "format": "pipewright-schedule",
        "version": 1,
        "name": "GPipe",
        "ranks": 2,
        "stages": 2,
        "microbatches": 1,
        "stageToRank": [0,1],
        "order": [
          ["0UNSHARD","0F0","0SEND_F0","0RECV_B0","0B0","0REDUCE_GRAD","0RESHARD"],
          ["1UNSHARD","1RECV_F0","1F0","1B0","1SEND_B0","1REDUCE_GRAD","1RESHARD"]
        ]
      }
      "
    `);
    expect(cli('schedule gpipe --ranks 2 --microbatches 1 --compat torch -f csv').out).toMatchInlineSnapshot(`
      "0F0,0B0,0REDUCE_GRAD
      1F0,1B0,1REDUCE_GRAD
      "
    `);
  });

  test('writes CSV as PyTorch reads it, or with a header', () => {
    expect(cli('schedule gpipe -p 1 -m 1 -f csv').out).toBe('0F0,0B0\r\n');
    const { out } = cli('schedule ZBH1 -p 2 -m 2 -f csv --header');
    expect(out.split('\r\n')[0]).toBe(
      '#pipewright-schedule,version=1,name=ZBH1,ranks=2,stages=2,microbatches=2,stageToRank=0 1',
    );
    expect(cli('schedule - -f timeline', out).out).toMatch(/^ZBH1: 2 ranks/);
  });

  test('lists the schedules', () => {
    const { out } = cli('schedule --list');
    for (const name of ['GPipe', '1F1B', 'Interleaved1F1B', 'ZBVZeroBubble', 'DualPipeV']) expect(out).toContain(name);
  });

  test('reads what it wrote, in every format that can be read', () => {
    for (const format of ['csv', 'json']) {
      const { out } = cli(`schedule DualPipeV -p 2 -m 4 -f ${format}`);
      expect(cli(`schedule - -f ${format}`, out).out).toBe(out);
    }
  });

  test('picks the format by the name of the file', () => {
    const made = (file: string): string => {
      expect(cli(`schedule ZBV -p 2 -m 4 -o ${file}`)).toEqual({ code: 0, out: '', err: '' });
      return readFileSync(join(folder, file), 'utf8');
    };
    expect(made('a.svg')).toMatch(/^<svg /);
    expect(JSON.parse(made('a.json'))).toMatchObject({ ranks: 2, stages: 4 });
    expect(JSON.parse(made('a.trace.json'))).toHaveProperty('traceEvents');
    expect(made('a.csv')).toContain('0F0');
    expect(made('a.txt')).toMatch(/^ +Rank 0/);
    expect(cli('schedule ZBV -p 2 -m 4 -o a.png')).toMatchObject({
      code: 2,
      err: expect.stringContaining('does not say the format'),
    });
  });
});

describe('simulate', () => {
  test('says the numbers', () => {
    expect(cli('simulate 1F1B -p 4 -m 8 --F 1 --B 2').out).toMatchInlineSnapshot(`
      "1F1B: 4 ranks, 4 stages, 8 microbatches
      makespan       33
      span           33
      bubble         27.3% of the makespan, 27.3% of the span
      peak memory    4 on rank 0
      critical path  22 actions: 0F0 1F0 2F0 3F0 3B0 3F1 … 3F7 3B7 2B7 1B7 0B7; 33 of work, 0 waiting for messages

      rank        busy  idle  communication  waiting for it  peak memory
      0     24 (72.7%)     9              0               0            4
      1     24 (72.7%)     9              0               0            3
      2     24 (72.7%)     9              0               0            2
      3     24 (72.7%)     9              0               0            1
      "
    `);
  });

  test('takes costs per stage, from a file, and both', () => {
    const makespan = (line: string): number =>
      (JSON.parse(cli(`simulate 1F1B -p 4 -m 8 -f json ${line}`).out) as { makespan: number }).makespan;
    writeFileSync(join(folder, 'slow.json'), '{ "F": 2, "I": 2, "W": 2 }');
    expect(makespan('--F 1 --B 2')).toBe(33);
    expect(makespan('--costs slow.json')).toBe(66);
    expect(makespan('--costs slow.json --F 1 --I 1 --W 1')).toBe(33);
    expect(makespan('--F 1,1,1,2')).toBeGreaterThan(33);
    expect(makespan('--lower')).toBe(33);
  });
});

describe('compare', () => {
  test('marks the best', () => {
    expect(cli('compare 1F1B Interleaved1F1B:2 ZBV -p 4 -m 8').out).toMatchInlineSnapshot(`
      "4 ranks, 8 microbatches; * is the best of its column
      schedule           stages/rank  makespan   bubble/makespan   bubble/span   peak memory
      1F1B                         1        33             27.3%         27.3%             4*
      Interleaved1F1B:2            2      28.5             15.8%         15.8%           5.5
      ZBVZeroBubble                2      25.5*             5.9%*         0.0%*            4*

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

  test('shortens many ranks, unless asked not to', () => {
    expect(cli('compare 1F1B -p 40 -m 40').out).toContain('(32 ranks not shown; --all-ranks shows them)');
    expect(cli('compare 1F1B -p 40 -m 40 --all-ranks').out.match(/^\d+ /gm)).toHaveLength(41);
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

describe('check', () => {
  test('accepts a legal schedule', () => {
    const { out } = cli('schedule DualPipeV -p 4 -m 10 --lower -f csv');
    expect(cli('check -', out)).toMatchInlineSnapshot(`
      {
        "code": 0,
        "err": "",
        "out": "ok standard input: 4 ranks, 8 stages, 10 microbatches, with communication
      ",
      }
    `);
  });

  test('lists violations with the place, exit code 1', () => {
    writeFileSync(join(folder, 'bad.csv'), '0F0,0B0,0F1,0B1\r\n1B0,1F0,1F1,1B1\r\n');
    const result = cli('check bad.csv');
    expect(result).toMatchInlineSnapshot(`
      {
        "code": 1,
        "err": "",
        "out": "1 violation in bad.csv: 2 ranks, 2 stages, 2 microbatches, compute only

        forward-first: rank 1 slot 0 (1B0): 1F0 is not before it; move the forward ahead

              Rank 0 Rank 1
      Step 0: 0F0    1B0    <-- rank 1: forward-first
      Step 1: 0B0    1F0   
      Step 2: 0F1    1F1   
      Step 3: 0B1    1B1
      ",
      }
    `);
    const json = cli('check bad.csv -f json');
    expect(json.code).toBe(1);
    expect(JSON.parse(json.out)).toMatchObject({ ok: false, ranks: 2, violations: [{ rank: 1, slot: 0 }] });
  });

  test('finds deadlocks', () => {
    const { code, out } = cli(
      'check -',
      '0F0,0SEND_F0,0RECV_B0,0B0\r\n1RECV_F0,1F0,1B0,1SEND_B0\r\n'.replace(
        '0F0,0SEND_F0,0RECV_B0',
        '0F0,0RECV_B0,0SEND_F0',
      ),
    );
    expect(code).toBe(1);
    expect(out).toContain('deadlock');
  });

  test('takes counts that the file does not say', () => {
    const { out } = cli('schedule 1F1B -p 2 -m 4 -f csv --compat torch');
    writeFileSync(join(folder, 'four.csv'), '0F0,0B0\n1F0,1B0\n');
    expect(out).toContain('REDUCE_GRAD');
    expect(cli('check four.csv').code).toBe(0);
    expect(cli('check four.csv -m 2')).toMatchObject({ code: 1, out: expect.stringContaining('missing') });
    expect(cli('check four.csv --stages 3').code).toBe(1);
  });

  test('a file that is no schedule fails the check; a file that is not there is a usage error', () => {
    expect(cli('check -', '0F0,hello\n')).toMatchObject({ code: 1, out: '', err: expect.stringContaining("'hello'") });
    expect(cli('check nothing.csv')).toEqual({
      code: 2,
      out: '',
      err: 'pipewright: cannot read nothing.csv: no such file or folder\n',
    });
  });
});
