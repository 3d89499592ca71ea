/** @file The lines of a live run give the same steps, in whatever order the files of its ranks are read. */
import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { type LiveLine, parseLiveLine } from './live-line.ts';
import { LiveRunReader } from './live-run.ts';

const schedule = buildSchedule('1F1B', { ranks: 2, microbatches: 3 });

/** The file of one rank: its run, then its steps. */
function fileOf(rank: number, steps: readonly number[], process = `host:${rank}`): LiveLine[] {
  const head = { device: 'cpu', process, origin: 1000, tokensPerStep: 8 };
  return [
    { kind: 'run', version: 1, rank, ...head, schedule: rank === 0 ? schedule.toJSON() : null },
    ...steps.map((step): LiveLine => {
      const times = { step, begin: 10 * step + rank, end: 10 * step + 9 };
      if (step % 3 === 2)
        return { kind: 'steps', ...{ step: [step], begin: [times.begin], end: [times.end], loss: [null] } };
      const memory = { processBytes: 100 + rank, deviceBytes: null, heldBytes: null };
      return { kind: 'step', ...times, training: true, loss: rank === 1 ? step : null, ...memory, actions: null };
    }),
  ];
}

const range = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, i) => from + i);

function read(lines: readonly (readonly [rank: number, line: LiveLine])[], kept?: number): LiveRunReader {
  const reader = new LiveRunReader(kept);
  for (const [rank, line] of lines) reader.add(rank, line);
  return reader;
}

const tagged = (rank: number, lines: readonly LiveLine[]): [number, LiveLine][] => lines.map((line) => [rank, line]);

describe('a live run', () => {
  const files = [fileOf(0, range(0, 7)), fileOf(1, range(0, 7))] as const;

  test('files one after the other, and line by line in turn: the same steps', () => {
    const apart = read([...tagged(0, files[0]), ...tagged(1, files[1])]);
    const inTurn = read(files[0].flatMap((line, i) => [...tagged(0, [line]), ...tagged(1, [files[1][i]!])]));
    expect(apart.steps.map(({ step }) => step)).toEqual(range(0, 7));
    expect(apart.steps).toEqual(inTurn.steps);
    expect(apart.steps[3]).toMatchObject({ begin: 1030, end: 1039, loss: 3, memoryBytes: 101 });
  });

  describe('with evaluations', () => {
    // Three training steps, then two evaluations, and so on; they are written in turn by themselves and together.
    const kinds = range(0, 40).map((step) => {
      const [round, at] = [Math.floor(step / 5), step % 5];
      return at < 3
        ? { step, training: true, number: 3 * round + at }
        : { step, training: false, number: 2 * round + at - 3 };
    });
    const evaluatingFile = (rank: number, isOld: boolean, ended = kinds): LiveLine[] => [
      fileOf(rank, [])[0]!,
      ...range(0, ended.length / 2).flatMap((pair): LiveLine[] => {
        const [alone, together] = [ended[2 * pair]!, ended[2 * pair + 1]!];
        const { number, ...rest } = alone;
        const times = { begin: 10 * alone.step, end: 10 * alone.step + 9, loss: null };
        const memory = { processBytes: alone.training ? 300 : 500, deviceBytes: null, heldBytes: null };
        const told = isOld ? {} : { training: [together.training], number: [together.number] };
        const [begin, end] = [[10 * together.step], [10 * together.step + 9]];
        return [
          { kind: 'step', ...rest, ...(isOld ? {} : { number }), ...times, ...memory, actions: null },
          { kind: 'steps', step: [together.step], ...told, begin, end, loss: [null] },
        ];
      }),
    ];
    const reread = (lines: readonly LiveLine[]): LiveLine[] =>
      lines.map((line) => parseLiveLine(JSON.stringify(line))!);
    const numbers = (steps: readonly { readonly step: number }[]): number[] => steps.map(({ step }) => step);

    test('each kind has its own numbers, times and memory', () => {
      const apart = read([0, 1].flatMap((rank) => tagged(rank, reread(evaluatingFile(rank, false)))));
      expect(numbers(apart.steps)).toEqual(range(0, 24));
      expect(numbers(apart.evaluations)).toEqual(range(0, 16));
      expect(apart.steps[3]).toMatchObject({ begin: 1050, end: 1059, memoryBytes: 300 });
      expect(apart.evaluations[1]).toMatchObject({ begin: 1040, memoryBytes: 500 });
      expect(apart.evaluates).toBe(true);
    });

    test('many evaluations leave the training steps in place', () => {
      const sampled = [
        ...range(0, 10).map((step) => ({ step, training: true, number: step })),
        ...range(0, 300).map((number) => ({ step: 10 + number, training: false, number })),
      ];
      const lines = [0, 1].flatMap((rank) => tagged(rank, evaluatingFile(rank, false, sampled)));
      const reader = read(lines, 20);
      expect(numbers(reader.steps)).toEqual(range(0, 10));
      expect(numbers(reader.evaluations)).toEqual(range(280, 300));
    });

    test('an older feed numbers all alike', () => {
      const old = read([0, 1].flatMap((rank) => tagged(rank, reread(evaluatingFile(rank, true)))));
      expect(numbers(old.steps)).toEqual(range(0, 40));
      expect(old.evaluations).toEqual([]);
      expect(old.evaluates).toBe(false);
    });

    test('the last timed step of training is there after evaluations; of a run without training, the last evaluation', () => {
      const timed = (training: boolean, step: number, number: number): LiveLine => {
        const count = schedule.order[0]!.length;
        const column = range(0, count);
        const actions = { start: column, ready: column, stop: column, bytes: column, tensors: column };
        const memory = { processBytes: 1, deviceBytes: null, heldBytes: null };
        return { kind: 'step', step, training, number, begin: 0, end: count, loss: null, ...memory, actions };
      };
      const both = (lines: readonly LiveLine[]): LiveRunReader =>
        read([0, 1].flatMap((rank) => tagged(rank, [...fileOf(rank, []), ...lines])));
      const mixed = both([timed(true, 0, 0), timed(true, 1, 1), timed(false, 2, 0), timed(false, 3, 1)]);
      expect(mixed.recording()!.steps).toMatchObject([{ step: 1, training: true }]);
      expect(mixed.recording('evaluation')!.steps).toMatchObject([{ step: 1, training: false }]);
      const only = both([timed(false, 0, 0)]);
      expect(only.recording('training')).toBeNull();
      expect(only.recording()!.steps).toMatchObject([{ step: 0, training: false }]);
    });
  });

  test('of long files only the last steps are kept, in both orders', () => {
    const long = [fileOf(0, range(0, 500)), fileOf(1, range(0, 500))] as const;
    const reader = read([...tagged(0, long[0]), ...tagged(1, long[1])], 20);
    expect(reader.steps.map(({ step }) => step)).toEqual(range(480, 500));
  });

  test('a rank that begins its file again keeps the steps of the others', () => {
    const again = read([
      ...tagged(0, fileOf(0, [0, 1, 2])),
      ...tagged(1, fileOf(1, [0])),
      ...tagged(1, fileOf(1, [1, 2])), // the file had grown too large
    ]);
    expect(again.steps.map(({ step }) => step)).toEqual([0, 1, 2]);
  });

  test('what a failed run had not finished is not mixed with the next run', () => {
    const reader = read([
      ...tagged(0, fileOf(0, [0, 1])),
      ...tagged(1, fileOf(1, [0, 1, 2])), // rank 0 fails in step 2
      ...tagged(0, fileOf(0, [1, 2, 3], 'host:10')),
    ]);
    expect(reader.steps.map(({ step }) => step)).toEqual([0, 1]);
    for (const [rank, line] of tagged(1, fileOf(1, [1, 2, 3], 'host:11'))) reader.add(rank, line);
    expect(reader.steps.map(({ step }) => step)).toEqual([0, 1, 1, 2, 3]);
  });
});
