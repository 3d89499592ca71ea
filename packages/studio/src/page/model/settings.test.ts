/** @file The address: what is written is read back, and no text from anywhere does more than set what it may. */
import { fc, test } from '@fast-check/vitest';
import { describe, expect } from 'vitest';
import { defaults, formatSettings, parseSettings, views } from './settings.ts';

const amounts = fc.array(fc.double({ min: 0, max: 1e6, noNaN: true }), { minLength: 1, maxLength: 6 });

describe('settings', () => {
  test('what is as at the beginning is left out', () => {
    expect(formatSettings(defaults)).toBe('');
    expect(formatSettings({ ...defaults, ranks: 8, schedule: 'ZB1P' })).toBe('schedule=ZB1P&ranks=8');
  });

  test.prop([
    fc.record({
      view: fc.constantFrom(...views),
      schedule: fc.constantFrom('1F1B', 'ZB1P'),
      ranks: fc.integer({ min: 1, max: 1024 }),
      stagesPerRank: fc.integer({ min: 1, max: 64 }),
      microbatches: fc.integer({ min: 1, max: 4096 }),
      costs: fc.record({
        F: amounts,
        I: amounts,
        W: amounts,
        B: fc.oneof(amounts, fc.constant([])),
        comm: amounts,
        activation: amounts,
        retained: amounts,
        parameters: amounts,
        gradients: amounts,
      }),
      limit: amounts,
      lowered: fc.boolean(),
      path: fc.boolean(),
      at: fc.option(fc.record({ rank: fc.nat(1023), slot: fc.nat(1e6), group: fc.nat(31) })),
      compare: fc.uniqueArray(fc.constantFrom('GPipe', 'VHalf', 'ZBH1')),
      theme: fc.constantFrom('light', 'dark', 'system'),
      sort: fc.constantFrom('makespan', '-peak'),
    }),
  ])('are read back', (settings) => {
    expect(parseSettings(`#${formatSettings(settings)}`)).toEqual(settings);
  });

  test.prop([fc.oneof(fc.string(), fc.webQueryParameters())])('any text gives settings within bounds', (text) => {
    const { ranks, microbatches, stagesPerRank, costs, schedule } = parseSettings(text);
    expect(ranks * microbatches * stagesPerRank).toBeGreaterThanOrEqual(1);
    expect(ranks).toBeLessThanOrEqual(1024);
    expect(schedule).toMatch(/^[\w+-]{1,40}$/);
    expect([...costs.F, ...costs.comm].every((value) => value >= 0 && Number.isFinite(value))).toBe(true);
  });

  test.each([
    'ranks=1e9',
    'ranks=-1',
    'ranks=4.5',
    'schedule=<script>',
    'F=,',
    'F=NaN',
    'view=../..',
    'comm=-1',
    'compare=%00',
    'theme=pink',
    'at=1',
    'at=-1.2',
    'at=1.2.3.4',
    'at=1e9.2',
  ])('%s is not taken', (text) => expect(parseSettings(text)).toEqual(defaults));
});
