/** @file Ranks as processes that do their work: results, places, output. */
import { describe, expect, test } from 'vitest';
import { isAlive, script } from '../../../testing/launching/processes.ts';
import { launch } from '../index.ts';

describe('ranks that do their work', () => {
  test('return it; each knows its place; arguments are theirs', async () => {
    const lines: string[] = [];
    const ranks = launch({
      ranks: 3,
      script,
      data: { scenario: 'sum' },
      args: ['--lr', '0.1'],
      env: { RANK: '9' },
      onLine: (line, { rank, stream }) => lines.push(`${rank} ${stream} ${line}`),
    });
    expect(await ranks.done).toEqual(
      [0, 1, 2].map((rank) => ({ sum: 6, env: [`${rank}`, '3', `${rank}`, '3'], args: ['--lr', '0.1'] })),
    );
    expect(lines.toSorted()).toEqual(['0 stdout sum 6', '1 stdout sum 6', '2 stdout sum 6']);
    expect(ranks.pids().map(isAlive)).toEqual([false, false, false]);
  });

  test('print whole lines on both streams, the last one without end too', async () => {
    const lines: string[][] = [[], []];
    await launch({
      ranks: 2,
      script,
      data: { scenario: 'print' },
      onLine: (line, { rank, stream }) => lines[rank]!.push(`${stream}: ${line}`),
    }).done;
    for (const [rank, printed] of lines.entries()) {
      expect(printed.filter((line) => line.startsWith('stdout'))).toEqual([
        `stdout: one of ${rank}, in two pieces`,
        'stdout: next line',
        'stdout: größe without an end',
      ]);
      expect(printed).toContain(`stderr: error of ${rank}`);
    }
  });

  test('may send messages of their own, which the launcher leaves alone', async () => {
    expect(await launch({ ranks: 1, script, data: { scenario: 'chats' } }).done).toEqual(['done']);
  });

  test('may end by process.exit(0); their last messages arrive', async () => {
    expect(await launch({ ranks: 2, script, data: { scenario: 'exitsWell' } }).done).toEqual([undefined, undefined]);
  });
});
