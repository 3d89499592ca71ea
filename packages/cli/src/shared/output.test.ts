import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { bin, cli, environment, folder, run } from '../../testing/run-cli.ts';

describe('what goes wrong is said in a line or two, without a stack', () => {
  test.each([
    'schedule',
    'schedule 1F1 -p 2 -m 2',
    'schedule 1F1B',
    'schedule 1F1B -p 2',
    'schedule 1F1B -p 0 -m 2',
    'schedule 1F1B -p 2 -m two',
    'schedule 1F1B -p 2 -m 4 --stages-per-rank 2',
    'schedule 1F1B -p 4 -m 2 --compat torch',
    'schedule 1F1B -p 4 -m 8 --formt csv',
    'schedule 1F1B -p 4 -m 8 --format cvs',
    'schedule 1F1B -p 4 -m 8 --compat tensorflow',
    'schedule nothing.csv',
    'schedule 1F1B -p 2 -m 2 --out nowhere/a.csv',
    'simulate 1F1B -p 2 -m 2 --F -1',
    'simulate 1F1B -p 2 -m 2 --F 1,2,3',
    'simulate 1F1B -p 2 -m 2 --costs nothing.json',
    'simulat 1F1B',
  ])('%s', (line) => {
    const { code, out, err } = cli(line);
    expect(code).toBe(2);
    expect(out).toBe('');
    expect(err).toMatch(/^pipewright: /);
    expect(err).not.toMatch(/\n\s+at /);
    expect(err.trim().split('\n').length).toBeLessThanOrEqual(3);
  });

  test('the way out is in the message', () => {
    const said = (line: string): string => cli(line).err.split('\n')[0]!;
    expect(
      [
        'schedule',
        'schedule zbvv -p 2 -m 2',
        'schedule 1F1B -p 2',
        'schedule 1F1B -p 4 -m 8 --formt csv',
        'schedule 1F1B -p 4 -m 8 --format cvs',
        'simulat 1F1B',
      ].map(said),
    ).toMatchInlineSnapshot(`
      [
        "pipewright: which schedule? Name one, for example: pipewright schedule 1F1B --ranks 4 --microbatches 8; --list shows all",
        "pipewright: buildSchedule: there is no schedule 'zbvv'; did you mean 'ZBVZeroBubble'? Known schedules: ForwardOnly, GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, ZBH1, ZBH2, ZB1P, ZB2P, VHalf, VMin, AdaptiveV",
        "pipewright: --microbatches missing; for example: pipewright schedule 1F1B --ranks 4 --microbatches 8",
        "pipewright: unknown option '--formt'",
        "pipewright: option '-f, --format <format>' argument 'cvs' is invalid. Allowed choices are table, timeline, csv, json, svg, trace.",
        "pipewright: unknown command 'simulat'",
      ]
    `);
  });

  test('bad JSON in a costs file', () => {
    writeFileSync(join(folder, 'broken.json'), '{ F: 1 }');
    expect(cli('simulate 1F1B -p 2 -m 2 --costs broken.json')).toMatchObject({
      code: 2,
      err: expect.stringContaining('is not JSON'),
    });
    writeFileSync(join(folder, 'unknown.json'), '{ "comn": 1 }');
    expect(cli('simulate 1F1B -p 2 -m 2 --costs unknown.json')).toMatchObject({
      code: 2,
      err: expect.stringContaining("did you mean 'comm'?"),
    });
  });
});

describe('output', () => {
  test('has colours only if asked for, or on a terminal', () => {
    const escape = '\u001b[';
    expect(cli('schedule 1F1B -p 2 -m 2 -f timeline').out).not.toContain(escape);
    expect(cli('schedule 1F1B -p 2 -m 2 -f timeline --color').out).toContain(escape);
    expect(run(['compare', '1F1B', '-p', '2', '-m', '2'], '', { ...environment, FORCE_COLOR: '1' }).out).toContain(
      escape,
    );
    expect(
      run(['compare', '1F1B', '-p', '2', '-m', '2'], '', { ...environment, FORCE_COLOR: '1', NO_COLOR: '1' }).out,
    ).not.toContain(escape);
    expect(
      run(['compare', '1F1B', '-p', '2', '-m', '2', '--no-color'], '', { ...environment, FORCE_COLOR: '1' }).out,
    ).not.toContain(escape);
  });

  test('may be cut off by its reader', async () => {
    const child = spawn(
      process.execPath,
      [bin, 'schedule', 'Interleaved1F1B', '-p', '32', '-s', '4', '-m', '256', '--lower', '-f', 'table'],
      { env: environment },
    );
    let err = '';
    child.stderr.on('data', (data: Buffer) => (err += data.toString()));
    child.stdout.once('data', () => child.stdout.destroy());
    const code = await new Promise((done) => child.on('close', done));
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const head = spawnSync(
      'sh',
      ['-c', `"${process.execPath}" "${bin}" schedule 1F1B -p 64 -m 512 | head -n 2 | wc -l`],
      { env: environment, encoding: 'utf8' },
    );
    expect([head.stdout.trim(), head.stderr]).toEqual(['2', '']);
  });

  test('to a file is whole or not there', () => {
    expect(cli('schedule 1F1B -p 2 -m 2 -f csv -o whole.csv').code).toBe(0);
    const before = readFileSync(join(folder, 'whole.csv'), 'utf8');
    expect(cli('schedule 1F1B -p 2 -m 2 --stages-per-rank 5 -f csv -o whole.csv').code).toBe(2);
    expect(readFileSync(join(folder, 'whole.csv'), 'utf8')).toBe(before);
    mkdirSync(join(folder, 'folder.csv'), { recursive: true });
    expect(cli('schedule 1F1B -p 2 -m 2 -o folder.csv')).toMatchObject({
      code: 2,
      err: expect.stringContaining('it is a folder'),
    });
    expect(readdirSync(folder).filter((name) => name.endsWith('.tmp'))).toEqual([]);
  });

  test('--out - is standard output', () => {
    expect(cli('schedule 1F1B -p 2 -m 2 -f csv -o -').out).toBe(cli('schedule 1F1B -p 2 -m 2 -f csv').out);
    expect(existsSync(join(folder, '-'))).toBe(false);
  });
});
