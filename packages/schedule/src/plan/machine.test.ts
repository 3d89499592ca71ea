/** @file A machine that is written by hand: what is wrong with it is said, and what is right is taken. */
import { describe, expect, test } from 'vitest';
import { machineProblem } from './machine.ts';

describe('a machine', () => {
  test.each([
    [{}],
    [{ memory: 8e9 }],
    [{ memory: [8e9, 4e9] }],
    [{ memory: Number.POSITIVE_INFINITY, slowness: [1, 1.5], bandwidth: 1e10, latency: 0 }],
    [
      {
        links: [
          { from: 0, to: 1, bandwidth: 1e9 },
          { from: 1, to: 0, latency: 1e-5 },
        ],
      },
    ],
  ])('%j is taken', (machine) => expect(machineProblem(machine, 2)).toBeNull());

  test.each([
    [{ memory: '8GB' }, "memory is '8GB'; give a positive number of bytes, or a list with one for each of the 2 ranks"],
    [
      { memory: [8e9] },
      'memory is an array of 1; give a positive number of bytes, or a list with one for each of the 2 ranks',
    ],
    [{ memory: -1 }, 'memory is -1; give a positive number'],
    [{ memory: [1, Number.NaN] }, 'memory is an array of 2; give'],
    [{ memory: null }, 'memory is null; give'],
    [
      { slowness: 1.5 },
      'slowness is 1.5; give a list of positive numbers, one for each of the 2 ranks: 1, or 2 for twice as slow',
    ],
    [{ slowness: [1, 0] }, 'slowness is an array of 2; give a list of positive'],
    [{ slowness: [1, Number.POSITIVE_INFINITY] }, 'slowness is'],
    [{ bandwidth: 0 }, 'bandwidth is 0; give a positive number of bytes per second'],
    [{ bandwidth: '10GB' }, "bandwidth is '10GB'"],
    [{ latency: -1 }, 'latency is -1; give a number of seconds of at least 0'],
    [{ links: {} }, 'links is an object; give a list of { from, to, bandwidth, latency }'],
    [{ links: [3] }, 'links[0] is 3; give two different ranks below 2'],
    [{ links: [{ from: 0, to: 2 }] }, 'links[0] is an object; give two different ranks below 2'],
    [{ links: [{ from: 0, to: 0 }] }, 'links[0] is an object; give two different ranks below 2'],
    [{ links: [{ from: 0, to: 1, bandwidth: -1 }] }, 'links[0].bandwidth is -1; give a positive number'],
  ])('%j is refused with what to write', (machine, problem) => expect(machineProblem(machine, 2)).toContain(problem));
});
