import { describe, expect, test } from 'vitest';
import { buildSchedule } from '../generate/build-schedule.ts';
import { Schedule } from '../model/schedule.ts';
import { simulate } from '../simulate/simulate.ts';
import { renderTimeline } from './timeline.ts';

const oneFOneB = buildSchedule('1F1B', { ranks: 4, microbatches: 4 });

describe('renderTimeline', () => {
  test('draws to scale, every unit of time equally wide', () => {
    expect(renderTimeline(oneFOneB)).toMatchInlineSnapshot(`
      "1F1B: 4 ranks, 4 stages, 4 microbatches
      makespan 21; bubble 42.9% of the makespan, 42.9% of the span; peak memory 4
      rank 0 │F0─F1─F2─F3─··················B0────···B1────···B2────···B3────│ busy  57.1%  peak 4
      rank 1 │···F0─F1─F2─············B0────F3─B1────···B2────···B3────······│ busy  57.1%  peak 3
      rank 2 │······F0─F1─······B0────F2─B1────F3─B2────···B3────············│ busy  57.1%  peak 2
      rank 3 │·········F0─B0────F1─B1────F2─B2────F3─B3────··················│ busy  57.1%  peak 1
              0              5              10             15             20
      F Forward   B Full backward   · idle
      "
    `);
  });

  test('draws uneven times to scale', () => {
    expect(
      renderTimeline(simulate(oneFOneB, { F: 1, I: 1.2, W: 0.7, comm: 0.25 }), { width: 90, legend: false }),
    ).toMatchInlineSnapshot(`
      "rank 0 │F0─F1F2─F3─···················B0───···B1───····B2───····B3───│ busy  50.9%  peak 4
      rank 1 │···F0─F1─F2·············B0───F3─B1───····B2───····B3───······│ busy  50.9%  peak 3
      rank 2 │·······F0F1─······B0────F2B1───··F3B2───····B3───············│ busy  50.9%  peak 2
      rank 3 │··········F0─B0───F1B1────·F2─B2───·F3─B3───·················│ busy  50.9%  peak 1
              0            5             10           15            20
      "
    `);
  });

  test('draws overlapped pairs', () => {
    expect(
      renderTimeline(buildSchedule('DualPipeV', { ranks: 2, microbatches: 4 }), { width: 120 }),
    ).toMatchInlineSnapshot(`
      "DualPipeV: 2 ranks, 4 stages, 4 microbatches
      makespan 26; bubble 7.7% of the makespan, 7.7% of the span; peak memory 5
      rank 0 │F0─F1─F2─F0─I0─W0─F1─X3 1─────···X2 0─────B2────···X3 1─────B3────I2─W2─I3─W3─│ busy  92.3%  peak 5
      rank 1 │···F0─F0─F1─F1─F2─B0────X2 0─────X3 1─────X3 1─────B2────B2────···I3─I3─W3─W3─│ busy  92.3%  peak 5
              0              5              10             15             20             25
      F Forward   I Backward input   W Backward weight   B Full backward   X Overlapped F and B   · idle
      "
    `);
  });

  test('shows how much of a column is busy where actions are narrower than that', () => {
    const text = renderTimeline(buildSchedule('1F1B', { ranks: 4, microbatches: 64 }), { width: 60, legend: false });
    expect(text).toMatchInlineSnapshot(`
      "rank 0 │▅▄███████████████████████████▇▆│ busy  95.5%  peak 4
      rank 1 │▄▆███████████████████████████▇▄│ busy  95.5%  peak 3
      rank 2 │▃████████████████████████████▇▂│ busy  95.5%  peak 2
      rank 3 │▄█████████████████████████████▁│ busy  95.5%  peak 1
              0              100
      "
    `);
  });

  test('keeps to the width', () => {
    for (const width of [40, 72, 200]) {
      for (const line of renderTimeline(oneFOneB, { width, legend: false }).split('\n'))
        expect(line.length).toBeLessThanOrEqual(width);
    }
  });

  test('colours change nothing but colours', () => {
    const text = renderTimeline(oneFOneB, { color: true });
    const plain = text.replaceAll(new RegExp(`${String.fromCharCode(27)}\\[[\\d;]*m`, 'g'), '');
    expect(text).not.toBe(plain);
    const shape = (t: string): string[] =>
      t
        .split('\n')
        .filter((line) => line.includes('│'))
        .map((line) => line.replace(/[^·│]/g, '#'));
    expect(shape(plain)).toEqual(shape(renderTimeline(oneFOneB)));
  });

  test('draws an empty schedule and refuses unknown options', () => {
    expect(renderTimeline(Schedule.from({ order: [[]] }), { legend: false })).toContain('rank 0');
    expect(() => renderTimeline(oneFOneB, { colour: true } as object)).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderTimeline: unknown option 'colour'; did you mean 'color'?]`,
    );
    expect(() => renderTimeline(oneFOneB, { width: 3 })).toThrowErrorMatchingInlineSnapshot(
      `[ScheduleError: renderTimeline: width must be an integer of at least 20, got 3]`,
    );
  });
});

test('where actions are shorter than a column, columns show the share that is busy', () => {
  const ranks = 64;
  const simulation = simulate(buildSchedule('1F1B', { ranks, microbatches: 512 }), { F: 1, B: 2 });
  const lines = renderTimeline(simulation, { width: 120, legend: false }).split('\n').slice(0, ranks);
  lines.forEach((line, rank) => {
    const strip = line.slice(line.indexOf('│') + 1, line.lastIndexOf('│'));
    const shown = [...strip].reduce((sum, c) => sum + ('·▁▂▃▄▅▆▇█'.indexOf(c) as number), 0) / 8 / strip.length;
    expect(strip).toMatch(/^[·▁▂▃▄▅▆▇█]+$/);
    expect(Math.abs(shown - simulation.busy[rank]! / simulation.makespan)).toBeLessThan(0.03);
  });
});
