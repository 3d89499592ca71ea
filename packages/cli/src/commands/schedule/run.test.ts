import { readFileSync } from 'node:fs';
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
