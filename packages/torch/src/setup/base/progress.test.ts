/** @file What progress looks like on a terminal and in a log. */
import { PassThrough } from 'node:stream';
import { afterEach, expect, test, vi } from 'vitest';
import { formatProgress, LineProgress } from './progress.ts';

test('bytes, counts and what has no total', () => {
  expect(formatProgress(120e6, 539.1e6)).toBe('120 of 539 MB (22 %)');
  expect(formatProgress(0.5e6, 2.3e6)).toBe('0.5 of 2.3 MB (21 %)');
  expect(formatProgress(12, 40)).toBe('12 of 40 (30 %)');
  expect(formatProgress(3e6, 0)).toBe('3.0 MB');
});

function record(isTTY: boolean): { progress: LineProgress; text: () => string } {
  const out = Object.assign(new PassThrough(), { isTTY });
  const progress = new LineProgress(out as unknown as NodeJS.WriteStream);
  return { progress, text: () => String(out.read() ?? '') };
}

test('on a terminal one line moves', () => {
  const { progress, text } = record(true);
  progress.step('compile', 1, 4);
  progress.end('compile');
  progress.say('ready');
  expect(text()).toBe('\r\u001b[Kcompile: 1 of 4 (25 %)\r\u001b[Kcompile: done\nready\n');
});

afterEach(() => vi.useRealTimers());

test('in a log there is a line now and then, and no control characters', () => {
  vi.useFakeTimers(); // no time passes between the steps
  const { progress, text } = record(false);
  progress.step('compile', 1, 4);
  progress.step('compile', 2, 4);
  progress.end('compile');
  expect(text()).toBe('compile: 1 of 4 (25 %)\n');
});

test('nothing is said while nothing is known', () => {
  const { progress, text } = record(false);
  progress.step('download', 0, 0);
  progress.step('download', 0, 8);
  expect(text()).toBe('download: 0 of 8 (0 %)\n');
});
