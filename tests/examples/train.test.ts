/** @file The examples that train: they run, the loss goes down, and they say what they did. */
import { type SpawnSyncReturns, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, test } from 'vitest';
import { parseOptions } from '../../examples/02-train-gpt-pipeline/options.ts';

const folder = mkdtempSync(join(tmpdir(), 'examples-'));
afterAll(() => rmSync(folder, { recursive: true }));

function runExample(path: string, ...args: readonly string[]): SpawnSyncReturns<string> {
  const file = fileURLToPath(new URL(`../../examples/dist/${path}`, import.meta.url));
  const env = { ...process.env, PIPEWRIGHT_THREADS: '1' };
  return spawnSync(process.execPath, [file, ...args], { encoding: 'utf8', timeout: 290_000, env });
}

function lossesOf(text: string): number[] {
  return [...text.matchAll(/^step .* loss ([\d.]+)/gm)].map((match) => Number(match[1]));
}

test('01: a GPT in one process', () => {
  const { status, stdout, stderr } = runExample(
    '01-train-gpt/train.js',
    ...['--steps', '50', '--width', '32', '--layers', '1', '--heads', '2', '--context', '16', '--sample', '40'],
  );
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  const [first, last] = lossesOf(stdout) as [number, number];
  expect(first).toBeGreaterThan(3.5);
  expect(last).toBeLessThan(first - 0.5);
  expect(stdout).toContain('A sample:\n\nThe ');
});

describe('02: the GPT in pipeline stages', () => {
  const small = ['--size', 'tiny', '--context', '16', '--sample', '20', '--microbatches', '4', '--batch', '8'];

  test.each([
    ['1F1B', 4, 4],
    ['ZBVZeroBubble', 2, 4],
  ])('%s on %i ranks', (schedule, ranks, stages) => {
    const trace = join(folder, `${schedule}.json`);
    const { status, stdout, stderr } = runExample(
      '02-train-gpt-pipeline/train.js',
      ...['--schedule', schedule, '--ranks', String(ranks), '--steps', '40', '--trace', trace, ...small],
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/^step +1\/40  loss [\d.]+  [\d,]+ characters\/s  bubble \d+%  \d+ s left$/m);
    const losses = lossesOf(stdout);
    expect(losses).toHaveLength(3);
    expect(losses[0]).toBeGreaterThan(3.5);
    expect(losses[2]).toBeLessThan((losses[0] as number) - 0.5);
    expect(/A sample:\n\n([^]*?)\n\n\w+: \d ranks/.exec(stdout)?.[1]).toHaveLength(20);
    expect(stdout).toContain(
      `${schedule}: ${ranks} ranks, ${stages} stages, 4 microbatches; recorded over 39 of 40 steps`,
    );
    expect(stdout.match(/^rank \d │/gm)).toHaveLength(2 * ranks);
    expect(stdout).toContain(`A trace for ui.perfetto.dev is in ${trace}`);
    const { traceEvents } = JSON.parse(readFileSync(trace, 'utf8')) as { traceEvents: { ph: string; tid: number }[] };
    expect(new Set(traceEvents.filter(({ ph }) => ph === 'X').map(({ tid }) => tid)).size).toBe(ranks);
  });

  test('a run that is resumed in another layout has the losses of one that was not stopped', () => {
    const checkpoints = join(folder, 'checkpoints');
    const lossOf = (text: string, step: number): string | undefined =>
      new RegExp(`^step +${step}/24  loss ([\\d.]+)`, 'm').exec(text)?.[1];
    const run = (...args: readonly string[]): string => {
      const { status, stdout, stderr } = runExample(
        '02-train-gpt-pipeline/train.js',
        ...['--steps', '24', '--trace', join(folder, 'resumed.json'), '--checkpoints', checkpoints, ...small, ...args],
      );
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      return stdout;
    };
    const whole = run('--ranks', '2', '--save-every', '10');
    const resumed = run('--ranks', '2', '--schedule', 'ZBVZeroBubble', '--resume'); // from step 20, in 4 stages
    expect(lossOf(whole, 24)).toMatch(/^[\d.]+$/);
    expect(lossOf(resumed, 24)).toBe(lossOf(whole, 24));
    expect(lossOf(resumed, 20)).toBeUndefined();
  });

  test.each([
    [['--resume', '--checkpoints', 'nowhere'], '--resume: there is no checkpoint in nowhere; --save-every makes some'],
    [['--schedule', '1F1'], "there is no schedule '1F1'; did you mean '1F1B'?"],
    [['--schedule', 'ForwardOnly'], '--schedule ForwardOnly has no backward'],
    [['--ranks', '0'], '--ranks is 0; give a whole number above 0'],
    [
      ['--stages', '5'],
      'stages (5) must be a multiple of ranks (4), so that every rank has as many; use 4 or 8 stages',
    ],
    [['--size', 'huge'], '--size is huge; give tiny, small, medium, gpt2'],
    [['--batch', '4'], '--batch is 4; 8 microbatches need as many rows or more'],
    [['--bogus'], "Unknown option '--bogus'"],
  ])('%j is refused', (args, message) => {
    expect(() => parseOptions(args)).toThrow(message);
  });

  test('what is wrong with the command line is said, without a stack', () => {
    const { status, stderr } = runExample('02-train-gpt-pipeline/train.js', '--ranks', 'x');
    expect(stderr).toBe('pipewright: --ranks is x; give a whole number above 0\n(--help lists the options)\n');
    expect(status).toBe(2);
  });

  test('a trace that cannot be written is refused before the training', () => {
    const { status, stdout, stderr } = runExample('02-train-gpt-pipeline/train.js', '--trace', 'nowhere/trace.json');
    expect(stderr).toBe(
      'pipewright: cannot write nowhere/trace.json: there is no folder nowhere; make it first\n(--help lists the options)\n',
    );
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
  });

  test.skipIf(process.platform !== 'linux')('a trace that fails at the end loses nothing else', () => {
    const { status, stdout, stderr } = runExample(
      '02-train-gpt-pipeline/train.js',
      ...['--ranks', '2', '--steps', '2', '--trace', '/dev/full', ...small],
    );
    expect(stdout).toContain('A sample:');
    expect(stdout.match(/^rank \d │/gm)).toHaveLength(4);
    // Then, in a line of its own, where the other rank was, if it had not ended by then.
    expect(stderr).toMatch(
      /^pipewright: rank 0 failed: cannot write \/dev\/full: the disk is full\n(At that moment: .*\n)?$/,
    );
    expect(status).toBe(1);
  });

  test('--help lists the options', () => {
    const { status, stdout } = runExample('02-train-gpt-pipeline/train.js', '--help');
    expect(status).toBe(0);
    const named = [...stdout.matchAll(/^ {2}--(\w+)/gm)].map((match) => match[1]);
    expect(named.join(' ')).toMatchInlineSnapshot(
      `"schedule ranks stages microbatches size steps batch context lr seed sample device trace plan save checkpoints resume"`,
    );
  });
});

test.each(['parameters', 'none'])('05: the GPT on a mesh, sharded: %s', (shard) => {
  const { status, stdout, stderr } = runExample('05-train-gpt-mesh/train.js', '--steps', '40', '--shard', shard);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(stdout).toContain('DeviceMesh(cpu, pp=2, dp=2; rank 0 at 0, 0)');
  const held = [...stdout.matchAll(/^rank \d trains ([\d,]+) numbers$/gm)].map((match) =>
    Number((match[1] as string).replaceAll(',', '')),
  );
  expect(held).toHaveLength(4);
  // In shards all ranks together have the model once, as copies twice.
  const model = 208_384;
  expect(held.reduce((sum, each) => sum + each, 0)).toBe(shard === 'none' ? 2 * model : model);
  const losses = lossesOf(stdout);
  expect(losses).toHaveLength(3);
  expect(losses[2]).toBeLessThan((losses[0] as number) - 0.5);
});
