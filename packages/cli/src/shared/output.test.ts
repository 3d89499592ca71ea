import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { bin, cli, environment, folder, run } from '../../testing/run-cli.ts';
import { makeDevice, makeFifo, mountSmallDisk } from '../../testing/special-files.ts';

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
    writeFileSync(join(folder, 'binary.pt2'), new Uint8Array([80, 75, 3, 4, 0, 0]));
    const said = (line: string): string => cli(line).err.split('\n')[0]!;
    expect(
      [
        'schedule',
        'schedule zbvv -p 2 -m 2',
        'schedule 1F1B -p 2',
        'schedule 1F1B -p 4 -m 8 --F 1,2',
        'studio binary.pt2 --export page.html',
        'schedule 1F1B -p 4 -m 8 --formt csv',
        'schedule 1F1B -p 4 -m 8 --format cvs',
        'simulat 1F1B',
      ].map(said),
    ).toMatchInlineSnapshot(`
      [
        "pipewright: which schedule? Name one, for example: pipewright schedule 1F1B --ranks 4 --microbatches 8; --list shows all",
        "pipewright: there is no schedule 'zbvv'; did you mean 'ZBVZeroBubble'? Known schedules: ForwardOnly, GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, ZBH1, ZBH2, ZB1P, ZB2P, VHalf, VMin, AdaptiveV",
        "pipewright: --microbatches missing for 1F1B; for example --microbatches 8",
        "pipewright: F has 2 values for 4 stages; give one number, or one per stage",
        "pipewright: binary.pt2 is not text; give schedules, plans, recordings or traces as CSV or JSON",
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
      { env: environment, encoding: 'utf8', timeout: 300_000 },
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

  test('to a place that cannot be written is refused before anything else', () => {
    expect(cli('schedule 1F1 -o nowhere/a.csv')).toEqual({
      code: 2,
      out: '',
      err: 'pipewright: cannot write nowhere/a.csv: there is no folder nowhere; make it first\n',
    });
  });

  test('--out - is standard output', () => {
    expect(cli('schedule 1F1B -p 2 -m 2 -f csv -o -').out).toBe(cli('schedule 1F1B -p 2 -m 2 -f csv').out);
    expect(existsSync(join(folder, '-'))).toBe(false);
  });
});

describe('--out destroys nothing', () => {
  const args = ['schedule', '1F1B', '-p', '2', '-m', '2', '-f', 'csv'];
  const csv = run(args).out;
  const place = mkdtempSync(join(tmpdir(), 'pipewright-out-'));
  const devices = { null: makeDevice(place, 'null'), full: makeDevice(place, 'full') };
  const disk = mountSmallDisk();
  afterAll(() => {
    disk?.unmount();
    rmSync(place, { recursive: true });
  });

  test.skipIf(devices.null === null)('a device like /dev/null stays one', () => {
    expect(run([...args, '-o', devices.null!])).toEqual({ code: 0, out: '', err: '' });
    expect(lstatSync(devices.null!).isCharacterDevice()).toBe(true);
  });

  test.skipIf(devices.full === null)('a device like /dev/full: one line, and the result is printed', () => {
    expect(run([...args, '-o', devices.full!])).toEqual({
      code: 1,
      out: csv,
      err: `pipewright: cannot write ${devices.full}: the disk is full; the result is printed instead\n`,
    });
    expect(lstatSync(devices.full!).isCharacterDevice()).toBe(true);
  });

  test('standard output on a full disk: one line', () => {
    const line = `"${process.execPath}" "${bin}" ${args.join(' ')} > /dev/full`;
    const { status, stderr } = spawnSync('sh', ['-c', line], { env: environment, encoding: 'utf8', timeout: 300_000 });
    expect([status, stderr]).toEqual([1, 'pipewright: cannot write standard output: the disk is full\n']);
  });

  test('/dev/stdout adds to a file that others write too', () => {
    const file = join(place, 'log.txt');
    const line = `{ echo before; "${process.execPath}" "${bin}" ${args.join(' ')} -o /dev/stdout; echo after; } > "${file}"`;
    expect(spawnSync('sh', ['-c', line], { env: environment, encoding: 'utf8', timeout: 300_000 })).toMatchObject({
      status: 0,
      stderr: '',
    });
    expect(readFileSync(file, 'utf8')).toBe(`before\n${csv}after\n`);
  });

  test('a pipe with a name gets the text', async () => {
    const pipe = makeFifo(place);
    const reader = spawn('cat', [pipe]);
    let text = '';
    reader.stdout.on('data', (data: Buffer) => (text += data.toString()));
    expect(run([...args, '-o', pipe])).toEqual({ code: 0, out: '', err: '' });
    await once(reader, 'close');
    expect(text).toBe(csv);
    expect(lstatSync(pipe).isFIFO()).toBe(true);
  });

  test('a link stays, and the file behind it is written', () => {
    writeFileSync(join(place, 'real.csv'), 'old');
    symlinkSync('real.csv', join(place, 'link.csv'));
    expect(run([...args, '-o', join(place, 'link.csv')]).code).toBe(0);
    expect(readlinkSync(join(place, 'link.csv'))).toBe('real.csv');
    expect(readFileSync(join(place, 'real.csv'), 'utf8')).toBe(csv);
  });

  test('a read-only folder is refused before the work', () => {
    const locked = join(place, 'locked');
    mkdirSync(locked);
    chmodSync(locked, 0o555);
    chmodSync(place, 0o755);
    // For root nothing is read-only: it becomes somebody else.
    const user = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};
    const { status, stdout, stderr } = spawnSync(process.execPath, [bin, ...args, '-o', join(locked, 'a.csv')], {
      env: { ...environment, HOME: place },
      encoding: 'utf8',
      ...user,
    });
    expect({ status, stdout, stderr }).toEqual({
      status: 2,
      stdout: '',
      stderr: `pipewright: cannot write ${join(locked, 'a.csv')}: permission denied\n`,
    });
  });

  test.skipIf(disk === null)('a full disk: what was there stays, the result is printed, one line', () => {
    const file = join(disk!.folder, 'a.csv');
    writeFileSync(file, 'old');
    writeFileSync(join(disk!.folder, 'most'), 'x'.repeat(14 * 4096)); // all but a page or two
    const large = ['schedule', 'Interleaved1F1B', '-p', '16', '-s', '2', '-m', '64', '-f', 'csv'];
    const { code, out, err } = run([...large, '-o', file]);
    expect(err).toBe(`pipewright: cannot write ${file}: the disk is full; the result is printed instead\n`);
    expect(code).toBe(1);
    expect(out).toBe(run(large).out);
    expect(readFileSync(file, 'utf8')).toBe('old');
    writeFileSync(join(disk!.folder, 'rest'), 'x'.repeat(4096));
    expect(run([...args, '-o', file])).toEqual({
      code: 2,
      out: '',
      err: `pipewright: cannot write ${file}: the disk is full\n`,
    });
    expect(readdirSync(disk!.folder)).toEqual(['a.csv', 'most', 'rest']);
  });
});
