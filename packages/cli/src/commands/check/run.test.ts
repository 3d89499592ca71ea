import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { cli, folder } from '../../../testing/run-cli.ts';

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
    expect(cli('check four.csv --stages 4')).toMatchInlineSnapshot(`
      {
        "code": 1,
        "err": "",
        "out": "2 violations in four.csv: 2 ranks, 4 stages, 1 microbatch, compute only

        missing: stage 2 is on no rank; every stage of the 4 must be placed
        missing: stage 3 is on no rank; every stage of the 4 must be placed
      ",
      }
    `);
  });

  test('an empty file is not a schedule', () => {
    const empty = 'the text is empty; write one line per rank, with a cell such as 0F0 for every action';
    const said = 'there is no action in it; a schedule has a line of actions per rank, such as 0F0,0B0';
    for (const [text, message] of [
      ['', empty],
      ['\n', empty],
      [',,\n', said],
      ['{ "order": [] }', said],
    ] as const)
      expect(cli('check -', text)).toEqual({ code: 1, out: '', err: `pipewright: standard input: ${message}\n` });
    expect(JSON.parse(cli('check - -f json', '').out)).toEqual({ file: '-', ok: false, error: empty, violations: [] });
    expect(cli('simulate -', ',,\n')).toEqual({ code: 2, out: '', err: `pipewright: standard input: ${said}\n` });
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
